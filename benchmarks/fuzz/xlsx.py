"""Excel files of plain cells, as small as the format lets them be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_DATE_STYLE = 1

_CONTENT_TYPES = f"""<Types xmlns="{_PACKAGE}/content-types">
<Default Extension="xml" ContentType="application/xml"/></Types>"""
_RELATIONSHIPS = f"""<Relationships xmlns="{_PACKAGE}/relationships">
<Relationship Id="r1" Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>"""
_STYLES = f"""<styleSheet xmlns="{_MAIN}"><cellXfs count="2">
<xf numFmtId="0"/><xf numFmtId="14"/></cellXfs>
</styleSheet>"""


class Day(int):
    """A day, counted as Excel does: 43831 is 1 January 2020."""


Cell = str | float | Day | None


def workbook(sheets: Mapping[str, Sequence[Sequence[Cell]]]) -> dict[str, str]:
    """The files in an Excel file, for :mod:`zipfile` to pack."""
    listed = list(enumerate(sheets, 1))
    names = "".join(f'<sheet name="{name}" sheetId="{n}" r:id="r{n}"/>' for n, name in listed)
    links = "".join(
        f'<Relationship Id="r{n}" Type="{_OFFICE}/worksheet" Target="worksheets/sheet{n}.xml"/>'
        for n, _ in listed
    )
    links += f'<Relationship Id="r0" Type="{_OFFICE}/styles" Target="styles.xml"/>'
    return {
        "[Content_Types].xml": _CONTENT_TYPES,
        "_rels/.rels": _RELATIONSHIPS,
        "xl/styles.xml": _STYLES,
        "xl/_rels/workbook.xml.rels": (
            f'<Relationships xmlns="{_PACKAGE}/relationships">{links}</Relationships>'
        ),
        "xl/workbook.xml": (
            f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>{names}</sheets></workbook>'
        ),
        **{f"xl/worksheets/sheet{n}.xml": _sheet(sheets[name]) for n, name in listed},
    }


def _sheet(rows: Sequence[Sequence[Cell]]) -> str:
    lines = [
        f'<row r="{number}">{"".join(map(_cell, row, _places(number, len(row))))}</row>'
        for number, row in enumerate(rows, 1)
    ]
    return f'<worksheet xmlns="{_MAIN}"><sheetData>{"".join(lines)}</sheetData></worksheet>'


def _places(row: int, length: int) -> list[str]:
    return [f"{chr(ord('A') + place % 26)}{row}" for place in range(length)]


def _cell(cell: Cell, place: str) -> str:
    if cell is None:
        return ""
    if isinstance(cell, str):
        text = escape("".join(character for character in cell if character.isprintable()))
        return f'<c r="{place}" t="inlineStr"><is><t>{text}</t></is></c>'
    style = f' s="{_DATE_STYLE}"' if isinstance(cell, Day) else ""
    return f'<c r="{place}"{style}><v>{cell!r}</v></c>'
