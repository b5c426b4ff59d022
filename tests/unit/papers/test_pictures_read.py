"""What a reader has to see in pictures: triangles, colours by shape too, limits of a curve."""

from math import inf

import numpy as np
from matplotlib.figure import Figure

from sfumato.auditing.bounds import Counts
from sfumato.auditing.verdict import Audit, Finding, Promise, _draw_roc
from sfumato.papers.picture import Band, Line, Panel, Scale, _draw
from sfumato.report.colours import COLOURS, INK, MARKERS


def axes():
    return Figure().subplots()


def test_lines_that_leave_at_one_place_have_triangles_one_above_the_other():
    lines = [
        Line(name, (Band(1, inf, 0), Band(10, 1, 0)), c) for name, c in zip("ab", COLOURS, strict=False)
    ]
    place = axes()
    _draw(place, Panel("", tuple(lines)), Scale("", 0.1, 2))
    heights = [
        line.get_ydata()[0] for line in place.lines if line.get_marker() == "^" and line.get_xdata().size
    ]
    assert len(set(heights)) == 2
    assert min(heights) > 1  # of the panel's height


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
