"""Pages of documentation that errors and promises name, where they lie on this machine."""

from __future__ import annotations

import sysconfig
from pathlib import Path

_WITH_THE_PACKAGE = Path("share") / "doc" / "sfumato"


def where(page: str) -> str:
    """The page as a file that was installed along with the package; in a checkout as it is named."""
    name, mark, anchor = page.partition("#")
    file = Path(sysconfig.get_path("data")) / _WITH_THE_PACKAGE / name
    return f"{file}{mark}{anchor}" if file.is_file() else page
