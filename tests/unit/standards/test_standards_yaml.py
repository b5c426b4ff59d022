"""What is written as YAML is read back as it was, by a reader of others."""

from math import inf

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sfumato.standards.yaml import to_yaml

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
SCALARS = st.one_of(TEXTS, st.integers(), st.floats(allow_nan=False), st.booleans(), st.none())
KEYS = st.one_of(st.from_regex(r"[a-z_]{1,5}", fullmatch=True), TEXTS)
DATA = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        # Lists in lists are in no record, and are not written.
        st.lists(st.one_of(SCALARS, st.dictionaries(KEYS, SCALARS, max_size=3)), max_size=3),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(KEYS, DATA, min_size=1, max_size=4))
@example({"a": "two\nlines", "b": "  indented\n first", "c": "ends\n", "d": "\n\nlate"})
@example({"a": "no", "b": "1e-06", "c": "x: y # z", "d": "- a\n- b", "e": "\u2028\x85\ufeff"})
@example({"a": 1e-06, "b": 1e22, "c": -inf, "yes": [{"off": 1}, {}]})
def test_it_is_read_back_as_it_was(data):
    assert yaml.safe_load(to_yaml(data)) == data


def test_text_of_several_lines_stays_readable_and_is_never_folded():
    written = to_yaml({"said": "one: line\n- and more\n\nafter a gap"})
    assert written == "said: |-\n  one: line\n  - and more\n\n  after a gap\n"
    styles = {token.style for token in yaml.scan(written) if hasattr(token, "style")}
    assert ">" not in styles


@pytest.mark.parametrize("number", [1e-06, 5e-324, 1e300, 0.1])
def test_numbers_keep_all_digits_and_stay_numbers(number):
    assert yaml.safe_load(to_yaml({"n": number}))["n"] == number
