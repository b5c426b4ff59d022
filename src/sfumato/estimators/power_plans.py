"""Plans of private decompositions: of a tensor, and of the moment of a stream."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

from sfumato.checks import check_count
from sfumato.data.tensor import SparseTensor
from sfumato.errors import SettingError
from sfumato.fit.plan import PrivatePlan
from sfumato.fit.power import Decomposition, as_printed
from sfumato.fit.request import Privacy
from sfumato.privacy.budgets import Budget
from sfumato.privacy.caveats import warn_of
from sfumato.privacy.units import Sample, TensorEntry
from sfumato.solvers.power.iteration import PowerSettings
from sfumato.solvers.power.moments import Moment, SumInDoubles, make_moment
from sfumato.solvers.power.sensitivity import InDoubles
from sfumato.solvers.protocol import Run
from sfumato.types import Array

_SEVERAL = 16  # times the public number of samples is how many the proof allows for
_WHITENED_NORM = 2.0  # in units of a whitened sample's usual length, the root of its dimensions


def entry_unit(privacy: Privacy, *, symmetric: bool) -> TensorEntry:
    """What is protected: what changes with an entry depends on whether the tensor is symmetric."""
    if not isinstance(privacy.unit, TensorEntry):
        raise SettingError(
            "a private decomposition of a tensor protects one entry of it: "
            "unit=sfumato.TensorEntry(change=...), by how much it may change"
        )
    return replace(privacy.unit, symmetric=symmetric)


def tensor_plan(
    settings: PowerSettings,
    unit: TensorEntry,
    privacy: Privacy,
    tensor: Array | SparseTensor,
    run: Run,
) -> PrivatePlan[Decomposition]:
    """The calibrated plan for a tensor, of which the shape matters and whether it is sparse."""
    printed = _is_printed(privacy)
    if printed:
        settings = replace(settings, average=False)
        if not settings.symmetric:
            raise SettingError('analysis="paper" is for symmetric tensors')
    sensitivity = InDoubles.of(unit, tensor.shape, sparse=isinstance(tensor, SparseTensor))
    assumed = ("the shape of the tensor is public",)
    task = Decomposition(settings, unit, sensitivity, "entry", assumptions=assumed)
    plan = PrivatePlan(task, privacy.budget, run)
    warn_of(plan.caveats)
    if printed and isinstance(privacy.budget, Budget):
        return as_printed(task, privacy.budget, run)
    return plan.calibrated()


def stream_plan(
    settings: PowerSettings, privacy: Privacy, kind: str, count: int | None, run: Run, *, reuse: bool
) -> tuple[PrivatePlan[Decomposition], Moment]:
    """The calibrated plan for the moment of a stream of about ``count`` samples, or of such blocks."""
    unit = privacy.unit
    if not isinstance(unit, Sample):
        raise SettingError(
            "a private decomposition of a stream protects one sample of it: "
            "unit=sfumato.Sample(norm=...), how long a sample may be"
        )
    if _is_printed(privacy):
        raise SettingError('the paper has no private stream: analysis="paper" is for tensors')
    if count is None:
        how = "public=sfumato.Public(entries=...)" if reuse else "samples=..., in a block"
        raise SettingError(f"say about how many samples there are, which is then public: {how}")
    check_count(samples=count)
    moment = make_moment(kind, settings.order, unit.norm, private=True)
    if unit.norm is not None:
        moment = replace(moment, whitened_norm=_WHITENED_NORM * sqrt(settings.components))
    what = moment.unit()
    task = Decomposition(
        settings,
        unit,
        SumInDoubles(moment, _SEVERAL * int(count)),
        what,
        int(count),
        in_blocks=not reuse,
        assumptions=_assumed_of_stream(settings.sizes[0], what, count, reuse),
    )
    plan = PrivatePlan(task, privacy.budget, run)
    warn_of(plan.caveats)
    return plan.calibrated(), moment


def _assumed_of_stream(features: int, what: str, count: int, reuse: bool) -> tuple[str, ...]:
    where = "" if reuse else " in a block"
    assumed = (
        f"the number of features, {features:,}, is public",
        f"that there are about {count:,} {what}s{where} is public",
        f"there are at most {_SEVERAL * int(count):,} {what}s{where}",
    )
    if reuse:
        return assumed
    apart = f"a {what} is in one block only, and in which one does not depend on the other {what}s"
    return *assumed, apart


def _is_printed(privacy: Privacy) -> bool:
    privacy.check_one_owner("the power method")
    privacy.check_no_intervals("the power method")
    if privacy.method != "auto" or privacy.noise != "auto":
        raise SettingError("the power method has no other private methods or noise: leave them out")
    if not isinstance(privacy.budget, Budget) and privacy.analysis == "paper":
        raise SettingError('analysis="paper" has a budget of epsilon and delta, not rho')
    if privacy.analysis == "paper" and not privacy.delta:
        raise SettingError('analysis="paper" needs a delta above zero, such as 1e-6')
    return privacy.analysis == "paper"
