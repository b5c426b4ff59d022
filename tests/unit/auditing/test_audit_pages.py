"""Audits as pages: the curve with its limits, from an audit at hand and from its record."""

import json
from math import log

import numpy as np
import pytest
from pages import Page
from test_verdict import CONSISTENT, FAIR, PROMISE, ROC, STRONG, VIOLATED, audit_of

import sfumato as sf
from sfumato.auditing.one_run import OneRunAudit
from sfumato.errors import DataError
from sfumato.estimators.showing import audit_page_of
from sfumato.report.page.audited import audited

ONE_RUN = OneRunAudit(PROMISE, np.arange(40.0), np.arange(40) % 3 > 0, 0.95, 4, seeded=True)


@pytest.mark.parametrize("audit", [CONSISTENT, VIOLATED, ONE_RUN], ids=["kept", "refuted", "one run"])
def test_a_page_says_what_was_found_and_is_not_for_release(audit, tmp_path):
    audit.report(tmp_path / "page.html")
    found = Page((tmp_path / "page.html").read_text("utf-8"))
    found.check()
    assert "Not for release" in found.text
    assert audit.verdict in found.text
    assert audit.verdict.split(":")[0] in audit._repr_html_()
    assert len(found.of("polygon")) == (0 if audit is ONE_RUN else 1)
    # The record makes the same page as the audit.
    (tmp_path / "audit.json").write_text(json.dumps(audit.to_json()))
    assert audit_page_of(tmp_path).text == (tmp_path / "page.html").read_text("utf-8")


def test_the_point_that_decides_is_the_corner_of_its_limits():
    """The bound is what its limits say: so many right alarms at least, so many false ones at most."""
    for finding in (FAIR, STRONG):
        point = finding.curve()["bound"]
        least, most = point[4], point[2]
        assert max(
            log(least / most), log((1 - most) / (1 - least) if least < 1 else 1)
        ) == pytest.approx(finding.bound, abs=1e-3)


def test_the_curve_lies_within_its_limits_and_the_more_runs_the_closer():
    few = np.array(FAIR.curve()["points"])
    assert len(few) == len(ROC) + 1  # it begins where nothing is cried
    assert (few[:, 1] <= few[:, 0]).all()
    assert (few[:, 0] <= few[:, 2]).all()
    assert (few[:, 4] <= few[:, 3]).all()
    assert (few[:, 3] <= few[:, 5]).all()
    many = np.array(
        FAIR.__class__(
            **{
                **vars(FAIR),
                "counts": FAIR.counts._replace(
                    first=7000, first_runs=10_000, second=3000, second_runs=10_000
                ),
            }
        ).curve()["points"]
    )
    assert (many[:, 2] - many[:, 1] < few[:, 2] - few[:, 1]).all()


def test_records_of_earlier_versions_have_no_curve():
    told = CONSISTENT.to_json()
    del told["curve"]
    assert audited(told).curve == ()


@pytest.mark.parametrize(
    "change",
    [
        {"curve": {"confidence": 0.9, "points": [[2.0] * 6], "bound": [0.0] * 6}},
        {"curve": {"confidence": 0.9, "points": [[0.1] * 5], "bound": [0.0] * 6}},
        {"curve": {"confidence": 0.9, "points": [], "bound": [0.0] * 6}},
        {"verdict": 3},
        {"runs": -1},
        {"promise": {"epsilon": "much"}},
        {"measured": float("nan")},
    ],
)
def test_what_is_no_record_of_an_audit_is_refused(change, tmp_path):
    told = {**CONSISTENT.to_json(), **change}
    with pytest.raises(DataError, match="not the record of an audit"):
        audited(told)
    (tmp_path / "audit.json").write_text("[")
    with pytest.raises(sf.SfumatoError):
        audit_page_of(tmp_path)


def test_a_seeded_audit_says_so(tmp_path):
    assert "seed" in str(audited(audit_of(FAIR).to_json()).lines)
    assert "seed" not in str(audited(audit_of(FAIR, seeded=False).to_json()).lines)
