"""Attacks on what a private fit promises: lower bounds on the real epsilon."""

from sfumato.auditing.audit import audit
from sfumato.auditing.one_run import OneRunAudit, audit_one_run
from sfumato.auditing.verdict import Audit

__all__ = ["Audit", "OneRunAudit", "audit", "audit_one_run"]
