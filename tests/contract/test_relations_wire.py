"""Plans, questions and releases of private fits of several relations are plain data."""

import numpy as np
import pytest

import sfumato as sf
from sfumato.estimators.coupled_private import prepared
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.ledger import Draw
from sfumato.records import same
from sfumato.sites.several import RelationSites
from sfumato.solvers.protocol import Run
from sfumato.wire import from_wire, to_wire

METHODS = ("bias", "moments", sf.PrivateLangevin(passes=2, keep=1))


def ready(unit, local, method, public):
    g = np.random.default_rng(1)
    modes = {"user": sf.Mode("user", 9), "item": sf.Mode("item", 7), "tag": sf.Mode("tag", 6)}

    def table(first, second):
        sizes = modes[first].size, modes[second].size
        cells = np.stack(np.unravel_index(g.choice(sizes[0] * sizes[1], 30, False), sizes))
        return sf.SparseTensor(cells, g.uniform(-1, 1, 30), (modes[first], modes[second]), (-1.0, 1.0))

    tensors = {
        "main": table("user", "item"),
        "side": table("user", "tag"),
        "about": table("item", "tag"),
    }
    said = {name: sf.Public(entries=30) for name in ("main", "side")}
    if not public:
        tensors.pop("about")
    else:
        said["about"] = True
    privacy = sf.Privacy(
        3.0,
        1e-6,
        unit=unit,
        local=local,
        method=method,
        seed=0,
        public=sf.Public(labels={n: range(m.size) for n, m in modes.items()}, relations=said),
    )
    made = prepared(tensors, dict.fromkeys(tensors, "cp"), privacy, 2, Run(0, 1), Entropy(0))
    return made.plan, RelationSites([made.tensors["main"], made.tensors["side"]], 1)


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize(("unit", "local"), [("entry", "user"), ("entry", None), ("user", "user")])
def test_everything_that_travels_comes_back_the_same(unit, local, method):
    if method == "moments" and local is None:
        method = "bias"
    plan, site = ready(unit, local, method, public=isinstance(method, str))
    plan = from_wire(to_wire(plan))
    solver, facts = plan.task.solver, plan.task.facts
    state = solver.init(plan.run, facts)
    for number, charge in enumerate(plan.charges):
        query = solver.ask(state)
        again = from_wire(to_wire(query))
        answer = query.clipped(site)
        assert same(answer, again.clipped(site)), type(query).__name__
        noisy = Draw(charge, Entropy(number)).release(answer)
        assert same(noisy, from_wire(to_wire(noisy)))
        state, _ = solver.update(state, noisy)
    made = solver.finish(state).model
    assert same(made, from_wire(to_wire(made)))
