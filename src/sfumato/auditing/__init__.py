"""Attacks on what a private fit promises: lower bounds on the real epsilon."""

from sfumato.auditing.audit import audit
from sfumato.auditing.verdict import Audit

__all__ = ["Audit", "audit"]
