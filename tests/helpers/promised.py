"""A guarantee with all of its fields, for tests of what is said of one."""

import sfumato as sf

PROMISED = sf.Guarantee(
    epsilon=1.0,
    delta=1e-6,
    unit="one entry",
    neighbours="one entry is added or removed",
    released=("mean", "rows of item"),
    method="noise on sums",
    proven=True,
    proof="proofs/biases.md",
    exact=True,
    seeded=False,
    assumptions=("the bounds are public",),
    kept=("rows of user",),
    owner="user",
    cap=20,
    fits=2,
    total_epsilon=float("inf"),
)
