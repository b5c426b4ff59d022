"""Who is trusted with what, and what each site draws for it."""

from dataclasses import replace
from fractions import Fraction
from functools import reduce
from math import inf, sqrt
from operator import add

import numpy as np
import pytest
from on_grid import on_grid
from posting import POSTS

from sfumato.errors import SettingError
from sfumato.kernels.grid import grid
from sfumato.privacy import mechanisms
from sfumato.privacy.accounting import epsilon_of
from sfumato.privacy.clipping import Clipped, combine
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import Composed, GaussianEvent, Repeated
from sfumato.privacy.guarantee import HOLDER_IS_TRUSTED
from sfumato.privacy.ledger import Charge, Ledger
from sfumato.privacy.mechanisms import (
    DiscreteGaussian,
    Gaussian,
    GaussianPerBlock,
    GaussianShare,
    Geometric,
    Laplace,
    NoisyShare,
    PoissonGaussian,
    PurePass,
    RandomisedResponse,
    VectorLaplace,
)
from sfumato.privacy.trust import Trust
from sfumato.privacy.units import Entry, Sample, TensorEntry, Unit, UnitValues, Value
from sfumato.records import same
from sfumato.wire import WireError, from_wire, to_wire

OWNER = Trust()
EACH = Trust("each site", 4)
SHARES = Trust("secure shares", 10, 3)
ALL = (OWNER, EACH, SHARES, Trust("each site", 4, sites_of_unit=3), Trust("secure shares", 5, 4, 2))
ADDITIVE = (Laplace(2.0), Laplace(2.0, True), Gaussian(2.0))

posts = pytest.mark.parametrize("post", POSTS.values(), ids=POSTS)
every = pytest.mark.parametrize("trust", ALL, ids=repr)


# -- settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kind": "nobody"}, "trust must be one of one owner, each site, secure shares"),
        ({"sites": 0}, "sites must be a whole number"),
        ({"sites": 2.5}, "sites must be a whole number"),
        ({"sites": 2**20 + 1}, "at most 1,048,576"),
        ({"tolerate": -1}, "tolerate must be a whole number"),
        ({"tolerate": 1}, "tolerate is for secure shares"),
        ({"kind": "each site", "sites": 5, "tolerate": 1}, "tolerate is for secure shares"),
        ({"sites": 3, "sites_of_unit": 2}, "put all entries of a unit into one site"),
        ({"kind": "each site", "sites": 3, "sites_of_unit": 4}, "lower sites_of_unit"),
        ({"kind": "each site", "sites": 3, "sites_of_unit": 0}, "sites_of_unit must be"),
        ({"kind": "secure shares", "sites": 2, "tolerate": 1}, "need 3 sites or more"),
        ({"kind": "secure shares", "sites": 3}, "every site knows its own share"),
        ({"kind": "secure shares", "sites": 3, "tolerate": 3}, "must be from 1 to 2"),
    ],
)
def test_what_cannot_be_is_said(settings, said):
    with pytest.raises(SettingError, match=said):
        Trust(**settings)


def test_numbers_may_be_numpys():
    assert Trust("secure shares", np.int64(4), np.int32(1)) == Trust("secure shares", 4, 1)
    assert type(Trust("each site", np.int64(4)).sites) is int


def test_an_entry_lies_at_one_site():
    several = Trust("each site", 3, sites_of_unit=2)
    for unit in (Unit("user"), UnitValues("user", 5)):
        several.check_unit(unit)
    for unit in (Entry(), Value(), TensorEntry(), Sample()):
        EACH.check_unit(unit)
        with pytest.raises(SettingError, match="lies at one site: leave out sites_of_unit"):
            several.check_unit(unit)


def test_a_round_is_opened_only_with_enough_sites():
    """Seven unknown shares are the whole noise, and whoever is in the sum knows one."""
    assert (SHARES.shares, SHARES.least_present) == (7, 8)
    for present in (8, 9, 10):
        SHARES.check_present(present)
    for present in (0, 7, 11):
        with pytest.raises(SettingError, match="a round needs 8 or more"):
            SHARES.check_present(present)
    EACH.check_present(1)


# -- noise ------------------------------------------------------------------------------------------


def test_noise_grows_with_the_sites_of_a_unit():
    each = Trust("each site", 9, sites_of_unit=4)
    assert [each.noise_factor(noise) for noise in ADDITIVE] == [4, 4, 2]
    assert each.noise_factor(GaussianPerBlock(1.0)) == 2
    assert Trust("secure shares", 9, 1, 4).noise_factor(Gaussian(1.0)) == 4  # changes of one sum add up
    for trust in (OWNER, EACH, SHARES):
        assert all(trust.noise_factor(noise) == 1 for noise in ADDITIVE)


def test_what_each_site_draws():
    for noise in ADDITIVE:
        assert OWNER.share_of(noise) == EACH.share_of(noise) == noise
        grown = Trust("each site", 9, sites_of_unit=4).share_of(noise)
        assert type(grown) is type(noise)
        assert grown.noise_multiplier in (4.0, 8.0)
    assert Trust("each site", 9, sites_of_unit=4).share_of(Laplace(2.0, True)) == Laplace(8.0, True)
    assert SHARES.share_of(Gaussian(2.0)) == GaussianShare(2.0, 7)
    assert Trust("secure shares", 10, 3, 4).share_of(Gaussian(2.0)) == GaussianShare(8.0, 7)


@pytest.mark.parametrize("noise", [*ADDITIVE[:2], GaussianPerBlock(2.0)], ids=repr)
def test_only_plain_gaussian_noise_is_drawn_in_shares(noise):
    with pytest.raises(SettingError, match="cannot be drawn in shares: give a delta above zero"):
        SHARES.share_of(noise)


@every
@pytest.mark.parametrize(
    "noise",
    [
        PoissonGaussian(2.0, 0.1, 5, False),
        PurePass(1.0),
        VectorLaplace(1.0),
        RandomisedResponse(1.0, 3),
        Geometric(2.0),
        DiscreteGaussian(2.0),
    ],
    ids=repr,
)
def test_noise_that_does_not_add_up_is_refused(trust, noise):
    with pytest.raises(SettingError, match="does not add up over sites"):
        trust.share_of(noise)


@pytest.mark.parametrize("sites_of_unit", [1, 2, 7, 100])
@pytest.mark.parametrize("noise", ADDITIVE, ids=repr)
@pytest.mark.parametrize("multiplier", [0.3, 2.0, 30.0])
def test_answers_of_all_sites_of_a_unit_cost_what_is_charged(noise, multiplier, sites_of_unit):
    """And with any less noise they would not: but for the two Laplace laws' own curves."""
    noise = replace(noise, noise_multiplier=multiplier)
    drawn = Trust("each site", 200, sites_of_unit=sites_of_unit).share_of(noise)
    for delta in (1e-9, 1e-5, 1e-2):
        charged = epsilon_of(noise.event, delta)
        cost = epsilon_of(Repeated(drawn.event, sites_of_unit), delta)
        assert cost <= charged * (1 + 1e-4) + 1e-6  # of which loss distributions are not surer
        if isinstance(noise, Gaussian):
            assert cost == pytest.approx(charged, rel=1e-6, abs=1e-9)
    if not isinstance(noise, Gaussian):
        pure = epsilon_of(Composed((drawn.event,) * sites_of_unit), 0.0)
        assert pure == pytest.approx(1 / multiplier)


def test_deviations_of_sums():
    gaussian = Gaussian(2.0)
    assert OWNER.total_deviation(gaussian, 1.5) == 3
    assert Trust(sites=4).total_deviation(gaussian, 1.5) == 3  # noise once, however many they are
    assert EACH.total_deviation(gaussian, 1.5) == 6
    assert EACH.total_deviation(gaussian, 1.5, 1) == 3
    assert EACH.total_deviation(Laplace(2.0), 1.5) == pytest.approx(6 * sqrt(2))
    assert SHARES.total_deviation(gaussian, 1.5, 7) == pytest.approx(3)
    assert SHARES.total_deviation(gaussian, 1.5) == pytest.approx(3 * sqrt(10 / 7))
    assert Trust("secure shares", 10, 3, 2).total_deviation(gaussian, 1.5, 7) == pytest.approx(6)
    assert Trust("each site", 4, sites_of_unit=4).total_deviation(gaussian, 1.5) == pytest.approx(12)


# -- shares -----------------------------------------------------------------------------------------


@pytest.fixture
def laws(monkeypatch):
    seen, draw = [], mechanisms.noise
    monkeypatch.setattr(mechanisms, "noise", lambda law, *rest: seen.append(law) or draw(law, *rest))
    return seen


@pytest.mark.parametrize("multiplier", [0.01, 1.0, 1e5])
@pytest.mark.parametrize("of", [1, 3, 1000, 2**20])
@pytest.mark.parametrize("bound", [0.9, 1.0, 1000.0])
def test_shares_are_as_large_as_the_proof_says(laws, multiplier, of, bound):
    """In fractions: of shares have the Gaussian's variance and four steps more, and no less."""
    step = grid(bound)
    clipped = on_grid(np.zeros(3), inf, bound, step)
    GaussianShare(multiplier, of).share(clipped, Entropy(0))
    (law,) = laws
    whole = (Fraction(multiplier) * Fraction(bound) / Fraction(step)) ** 2 + 16
    assert law.kind == "gaussian"
    assert whole <= of * Fraction(law.scale) ** 2 <= whole * (1 + Fraction(1, 10**11))


def test_shares_that_the_proof_does_not_cover_are_refused(laws):
    numbers = Clipped(np.zeros(3, np.int64), inf, 1.0)
    for share in (GaussianShare(7.0, 2), GaussianShare(0.5, 1), GaussianShare(800.0, 2**20)):
        with pytest.raises(
            SettingError, match="less than the proof covers, which is 8: use fewer sites"
        ):
            share.share(numbers, Entropy(0))
    with pytest.raises(SettingError, match="more than sites can add up: use a larger epsilon"):
        GaussianShare(2.0**56, 3).share(numbers, Entropy(0))
    assert not laws  # nothing was drawn
    GaussianShare(8.0, 1).share(numbers, Entropy(0))
    GaussianShare(2.0**54, 3).share(numbers, Entropy(0))
    with pytest.raises(SettingError, match="L2 norm"):
        GaussianShare(8.0, 1).share(Clipped(np.zeros(3, np.int64), 1.0, inf), Entropy(0))


@pytest.mark.parametrize("of", [0, -1, 1.5, True, 2**20 + 1])
def test_a_share_is_one_of_so_many(of):
    with pytest.raises(SettingError, match="of must be a whole number"):
        GaussianShare(1.0, of)
    with pytest.raises(SettingError, match="noise multiplier"):
        GaussianShare(0.0, 3)


def answers(number, size=5):
    generator = np.random.default_rng(3)
    return [
        Clipped(generator.integers(-(2**40), 2**40, size), inf, 1.5, grid(1.5), public=(np.arange(2),))
        for _ in range(number)
    ]


def test_shares_add_up_to_the_sum_of_all_with_their_noise(monkeypatch):
    parts = answers(4)
    monkeypatch.setattr(mechanisms, "noise", lambda law, number, _: np.arange(number) - 2)
    shares = [replace(GaussianShare(2.0, 3).share(part, None), public=part.public) for part in parts]
    assert all(share.values.dtype == np.int64 for share in shares)
    opened = reduce(add, shares).opened()
    whole = combine(parts).values + 4 * (np.arange(5) - 2)
    assert opened.values.tolist() == (whole * grid(1.5)).tolist()
    assert opened.deviation == pytest.approx(3 * sqrt(4 / 3))
    assert opened.public[0].tolist() == [0, 4]
    forwards, backwards = (reduce(add, each).values for each in (shares, shares[::-1]))
    assert (forwards == backwards).all()


@pytest.mark.parametrize("shape", [(), (3,)])
def test_sums_wrap_around_and_lose_nothing(shape):
    """So that masks, which do, can be added: what is taken off again was never there."""
    large = NoisyShare(np.full(shape, 2**62 + 5), 1.0, 0.5)
    other = NoisyShare(np.full(shape, -(2**62) + 1), 1.0, 0.5)
    assert (reduce(add, [large, large, large, other, other, other]).values == 18).all()
    assert (large + large).values.dtype == np.int64


def test_answers_to_different_questions_are_not_added():
    share = NoisyShare(np.zeros(3, np.int64), 1.0, 0.5)
    for other in (
        replace(share, step=0.25),
        replace(share, values=np.zeros(1, np.int64)),
        replace(share, public=(np.zeros(2),)),
    ):
        with pytest.raises(SettingError, match="different questions"):
            share + other


def test_nothing_is_cut_off_at_a_site():
    """The sum of what was cut off would not be what is left of the sum."""
    numbers = Clipped(np.full(2000, 2**61), inf, 2.0**54)
    share = GaussianShare(1.0, 1).share(numbers, Entropy(5))
    assert (share.values > 2**61).mean() == pytest.approx(0.5, abs=0.08)


def test_a_share_is_charged_as_the_whole_and_drawn_once():
    """The ledger's event is that of the sum; a site cannot charge less, and records what it did."""
    trust, plan = Trust("secure shares", 5, 2), Charge("sums", Gaussian(2.0))
    assert trust.share_of(plan.mechanism).event == plan.mechanism.event == GaussianEvent(2.0)
    ledger, (part, *_) = Ledger(Entry()), answers(1)
    with ledger.reserve([plan], Entropy(1)) as reservation:
        share = reservation.ask(lambda draw: draw.shares([part], trust))
    assert isinstance(share, NoisyShare)
    assert share.public[0].tolist() == [0, 1]
    assert ledger.events == [GaussianEvent(2.0)]


@every
@pytest.mark.parametrize("noise", ADDITIVE, ids=repr)
def test_what_is_charged_leaves_as_much_noise_in_the_sum_as_the_solver_was_told(trust, noise):
    """A solver plans with the noise of a sum over all sites, wherever it is drawn."""
    if trust.kind == "secure shares" and type(noise) is not Gaussian:
        with pytest.raises(SettingError, match="cannot be drawn in shares"):
            trust.charged(noise)
        return
    charged = trust.charged(noise)
    assert trust.total_deviation(charged, 1.5) == pytest.approx(noise.deviation(1.5))
    assert (charged == noise) == (trust.kind == "one owner")
    assert replace(charged, noise_multiplier=noise.noise_multiplier) == noise


@every
def test_noise_of_one_owner_may_be_of_any_kind(trust):
    if trust.kind == "one owner":
        assert trust.charged(PurePass(1.0)) == PurePass(1.0)
    else:
        with pytest.raises(SettingError, match="does not add up over sites"):
            trust.charged(PurePass(1.0))


def test_one_site_that_adds_all_noise_draws_what_one_owner_would():
    (part,) = answers(1)
    part = replace(part, l1=1.5)
    for noise in (Gaussian(2.0), Laplace(2.0)):
        alone = noise.release(part, Entropy(7))
        ledger, trust = Ledger(Entry()), Trust("each site", 1)
        assert trust.charged(noise) == noise
        with ledger.reserve([Charge("sums", noise)], Entropy(7)) as reservation:
            share = reservation.ask(lambda draw, trust=trust: draw.shares([part], trust))
        assert same(share.opened(), replace(alone, public=part.public))


def test_shares_of_different_questions_are_not_drawn():
    part, other = answers(2)
    ledger, trust = Ledger(Entry()), Trust("each site", 2)
    with (
        ledger.reserve([Charge("sums", Gaussian(2.0))], Entropy(7)) as reservation,
        pytest.raises(SettingError, match="different questions"),
    ):
        reservation.ask(lambda draw: draw.shares([part, replace(other, l2=3.0)], trust))


# -- in words, and sent -----------------------------------------------------------------------------


def test_trust_in_words():
    assert OWNER.in_words() == HOLDER_IS_TRUSTED
    assert OWNER.assumptions == ()
    assert "adds all of the noise before an answer leaves it" in EACH.in_words()
    assert "neither whoever runs the fit nor any other site" in EACH.in_words()
    assert "of 10 sites at most 3 may be lost in a round or tell what they know" in SHARES.in_words()
    assert EACH.assumptions[0] == "the data of one unit lie at one site"
    assert Trust("each site", 4, sites_of_unit=3).assumptions[0].endswith("lie at at most 3 sites")
    assert any("one sum is opened, over one set of sites" in each for each in SHARES.assumptions)
    assert len({trust.in_words() for trust in (OWNER, EACH, SHARES)}) == 3


@posts
def test_trust_shares_and_what_they_draw_can_be_sent(post):
    for trust in ALL:
        assert post(trust) == trust
    charge = Charge("sums", GaussianShare(2.0, 7))
    assert post(charge) == charge
    share = GaussianShare(2.0, 7).share(answers(1)[0], Entropy(2))
    assert same(post(share), share)
    assert same((post(share) + post(share)).opened(), (share + share).opened())


def test_messages_that_cannot_be_are_refused():
    message = to_wire(SHARES)
    for wrong in (
        message.replace(b"secure shares", b"secure sharez"),
        message.replace(b": 10", b":-10"),
    ):
        assert wrong != message
        with pytest.raises(WireError):
            from_wire(wrong)
