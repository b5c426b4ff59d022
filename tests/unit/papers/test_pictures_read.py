"""What a reader has to see in pictures: triangles, colours by shape too, limits of a curve."""

from math import inf

import numpy as np
from matplotlib.figure import Figure

from sfumato.auditing.bounds import Counts
from sfumato.auditing.verdict import Audit, Finding, Promise, _draw_roc
from sfumato.papers.ermis_sharing_pictures import _joined
from sfumato.papers.picture import Band, Line, Panel, Row, Scale, _about_triangles, _draw
from sfumato.report.colours import COLOURS, INK, MARKERS


def axes():
    return Figure().subplots()


def test_lines_that_leave_at_one_place_have_triangles_one_above_the_other():
    lines = [
        Line(name, (Band(1, inf, 0), Band(10, 1, 0)), c) for name, c in zip("ab", COLOURS, strict=False)
    ]
    place = axes()
    _draw(place, Panel("", tuple(lines)), Scale("", 0.1, 2), lanes=2)
    heights = [
        line.get_ydata()[0] for line in place.lines if line.get_marker() == "^" and line.get_xdata().size
    ]
    assert len(set(heights)) == 2
    assert min(heights) > 1  # of the panel's height


def test_the_note_says_what_triangles_are_where_there_are_any():
    scale = Scale("", 0.1, 2)
    rows = {
        mean: [Row((Panel("", (Line("", (Band(1, mean, 0),), INK),)),), scale)]
        for mean in (1.0, 3.0, inf)
    }
    assert _about_triangles(rows[1.0]) == ""
    assert _about_triangles(rows[3.0]).endswith("beyond the top")
    assert _about_triangles(rows[inf]).endswith("beyond the top, or diverged")


def test_marks_without_a_line_lie_above_lines():
    place = axes()
    bands = (Band(1, 1, 0), Band(10, 1, 0))
    lines = (Line("printed", bands, INK, " ", "x"), Line("found", bands, INK))
    _draw(place, Panel("", lines), Scale("", 0.1, 2), lanes=0)
    marks = [line for line in place.lines if line.get_marker() == "x"]
    others = [line for line in place.lines if line.get_marker() not in ("x", "^")]
    assert min(mark.get_zorder() for mark in marks) > max(line.get_zorder() for line in others)


def test_printed_rows_have_one_lane():
    curves = [
        Line("printed", (Band(1, 2, 0),), INK, " "),
        Line("own", (Band(1, 1, 0),), INK),
        Line("printed", (Band(1, 3, 0), Band(2, 1, 0)), INK, " "),
    ]
    own, printed = _joined(curves)
    assert own is curves[1]
    assert [band.mean for band in printed.bands] == [2, 3, 1]


def test_every_colour_has_a_shape_of_its_own_and_none_is_that_of_what_lies_beyond():
    assert set(MARKERS) == {*COLOURS, INK}
    assert len(set(MARKERS.values())) == len(MARKERS)
    assert "^" not in MARKERS.values()
    assert Line("", (), COLOURS[1]).shape == MARKERS[COLOURS[1]]
    assert Line("", (), COLOURS[1], marker="").shape == ""


def test_an_audits_curve_lies_between_its_limits():
    alarms = np.linspace(0, 1, 101)
    roc = tuple(zip(alarms, alarms**0.8, strict=True))
    finding = Finding("least", "an attack", Counts(60, 100, 50, 100), 0.0, 0.05, roc)
    promise = Promise(1.0, 0.0, None, "one value", "it changes", "a method", True)
    place = axes()
    _draw_roc(place, Audit(promise, (finding,), 0.95, 200, True))
    band = next(each for each in place.patches if each.get_xy().shape[0] > 100)
    inside = band.get_path().contains_points([(0.5, 0.5**0.8), (0.2, 0.2**0.8), (0.01, 0.02)])
    assert inside.all()
    assert not band.get_path().contains_points([(0.1, 0.6), (0.6, 0.1)]).any()
    (key,) = [text.get_text() for text in place.get_legend().get_texts() if "decides" in text.get_text()]
    dots = [line for line in place.lines if line.get_marker() == "o" and line.get_xdata().size]
    assert key
    assert [(*dots[0].get_xdata(), *dots[0].get_ydata())] == [(0.5, 0.6)]
