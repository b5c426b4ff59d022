"""Complete and factorise sparse multi-way data, with differential privacy that says what it protects.

::

    import sfumato as sf

    ratings = sf.read(
        "ratings.csv", modes=["user", "item"], value="rating", bounds=(1, 5)
    )
    train, test = ratings.split(0.2, seed=0)
    model = sf.CP(rank=8).fit(train)
    model.rmse(test)
    model.predict(user="u17", item="m3")

    privacy = sf.Privacy(
        epsilon=1,
        delta=1e-6,
        unit="user",
        public=sf.Public(labels=True, units=1000),
    )
    private = sf.CP(rank=8, privacy=privacy).fit(train)
    print(private.guarantee_)
    private.release("release/")
"""

import ast
from os.path import splitext

__version__ = "0.1.0"


def _read_homes() -> dict[str, str]:
    """The module of each public name, from the stub beside this file, which type checkers read."""
    with open(splitext(__file__)[0] + ".pyi", encoding="utf-8") as stub:
        imports = [each for each in ast.parse(stub.read()).body if isinstance(each, ast.ImportFrom)]
    return {alias.name: str(each.module) for each in imports for alias in each.names}


_HOMES = _read_homes()
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    """A public name, imported when it is first used.

    All of them take a second, mostly for compiled libraries, and ``sfumato --help`` needs none.
    """
    if name not in _HOMES:
        raise AttributeError(f"module 'sfumato' has no attribute {name!r}")
    # Like `from home import name`, where the name may be a module's too.
    globals()[name] = getattr(__import__(_HOMES[name], fromlist=[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
