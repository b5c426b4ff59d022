"""Complete and factorise sparse multi-way data, with differential privacy that says what it protects.

import sfumato as sf

ratings = sf.read("ratings.csv", modes=["user", "item"], value="rating", bounds=(1, 5))
train, test = ratings.split(0.2, seed=0)
model = sf.CP(rank=8).fit(train)
model.rmse(test)
model.predict(user="u17", item="m3")

privacy = sf.Privacy(epsilon=1, delta=1e-6, unit="user", public=sf.Public(labels=True, units=1000))
private = sf.CP(rank=8, privacy=privacy).fit(train)
print(private.guarantee_)
private.release("release/")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sfumato.auditing import Audit, OneRunAudit, audit, audit_one_run
    from sfumato.data import datasets, prepare, scaling, synthetic
    from sfumato.data.io.read import read
    from sfumato.data.io.write import write_completed, write_factors
    from sfumato.data.profile import Profile
    from sfumato.data.relations import Relations
    from sfumato.data.tensor import Mode, SparseTensor
    from sfumato.errors import (
        DataError,
        ModelFileError,
        NotFittedError,
        OldFormatWarning,
        PrivacyWarning,
        ReleaseError,
        SaveError,
        SettingError,
        SfumatoError,
        SignatureError,
        UnknownLabelError,
    )
    from sfumato.estimators.completion import CP, Biases, TensorEstimator, Tucker, cross_validate, load
    from sfumato.estimators.coupled import Coupled
    from sfumato.estimators.power import PowerMethod
    from sfumato.estimators.search import PrivateSearch
    from sfumato.fit.model_order import choose_rank
    from sfumato.fit.request import Privacy
    from sfumato.models.components import Matching, match_components
    from sfumato.models.multilinear import CPModel, TuckerModel
    from sfumato.privacy.account import read_ledger
    from sfumato.privacy.budgets import ZCDP, Budget
    from sfumato.privacy.guarantee import Guarantee
    from sfumato.privacy.ledger import BudgetError, Ledger
    from sfumato.privacy.units import Entry, Public, Sample, TensorEntry, Unit, UnitValues, Value
    from sfumato.solvers import (
        ALS,
        SGD,
        InputPerturbation,
        Langevin,
        MinibatchSGD,
        Multiplicative,
        PaperGradient,
        PaperInput,
        PaperOutput,
        PrivateAlternating,
        PrivateBiases,
        PrivateConstant,
        PrivateOutput,
        PrivatePasses,
        PrivateSGD,
        SequentialSGD,
        Variational,
    )
    from sfumato.store import new_key, sign, verify

__version__ = "0.1.0"

__all__ = [
    "ALS",
    "CP",
    "SGD",
    "ZCDP",
    "Audit",
    "Biases",
    "Budget",
    "BudgetError",
    "CPModel",
    "Coupled",
    "DataError",
    "Entry",
    "Guarantee",
    "InputPerturbation",
    "Langevin",
    "Ledger",
    "Matching",
    "MinibatchSGD",
    "Mode",
    "ModelFileError",
    "Multiplicative",
    "NotFittedError",
    "OldFormatWarning",
    "OneRunAudit",
    "PaperGradient",
    "PaperInput",
    "PaperOutput",
    "PowerMethod",
    "Privacy",
    "PrivacyWarning",
    "PrivateAlternating",
    "PrivateBiases",
    "PrivateConstant",
    "PrivateOutput",
    "PrivatePasses",
    "PrivateSGD",
    "PrivateSearch",
    "Profile",
    "Public",
    "Relations",
    "ReleaseError",
    "Sample",
    "SaveError",
    "SequentialSGD",
    "SettingError",
    "SfumatoError",
    "SignatureError",
    "SparseTensor",
    "TensorEntry",
    "TensorEstimator",
    "Tucker",
    "TuckerModel",
    "Unit",
    "UnitValues",
    "UnknownLabelError",
    "Value",
    "Variational",
    "audit",
    "audit_one_run",
    "choose_rank",
    "cross_validate",
    "datasets",
    "load",
    "match_components",
    "new_key",
    "prepare",
    "read",
    "read_ledger",
    "scaling",
    "sign",
    "synthetic",
    "verify",
    "write_completed",
    "write_factors",
]

# Where each name lives. Importing all of it takes a second, mostly for compiled libraries, so that
# a module is imported when one of its names is first used: `sfumato --help` uses none.
_HOMES = {
    "sfumato.auditing": ("Audit", "OneRunAudit", "audit", "audit_one_run"),
    "sfumato.estimators.coupled": ("Coupled",),
    "sfumato.data": ("datasets", "prepare", "scaling", "synthetic"),
    "sfumato.data.profile": ("Profile",),
    "sfumato.data.io.read": ("read",),
    "sfumato.data.relations": ("Relations",),
    "sfumato.data.tensor": ("Mode", "SparseTensor"),
    "sfumato.data.io.write": ("write_completed", "write_factors"),
    "sfumato.errors": (
        "DataError",
        "ModelFileError",
        "NotFittedError",
        "OldFormatWarning",
        "PrivacyWarning",
        "ReleaseError",
        "SaveError",
        "SettingError",
        "SfumatoError",
        "SignatureError",
        "UnknownLabelError",
    ),
    "sfumato.estimators.completion": (
        "CP",
        "Biases",
        "TensorEstimator",
        "Tucker",
        "cross_validate",
        "load",
    ),
    "sfumato.fit.model_order": ("choose_rank",),
    "sfumato.models.components": ("Matching", "match_components"),
    "sfumato.models.multilinear": ("CPModel", "TuckerModel"),
    "sfumato.estimators.power": ("PowerMethod",),
    "sfumato.privacy.account": ("read_ledger",),
    "sfumato.privacy.budgets": ("ZCDP", "Budget"),
    "sfumato.privacy.guarantee": ("Guarantee",),
    "sfumato.privacy.ledger": ("BudgetError", "Ledger"),
    "sfumato.fit.request": ("Privacy",),
    "sfumato.privacy.units": ("Entry", "Public", "Sample", "TensorEntry", "Unit", "UnitValues", "Value"),
    "sfumato.solvers": (
        "ALS",
        "SGD",
        "InputPerturbation",
        "Langevin",
        "MinibatchSGD",
        "Multiplicative",
        "PaperGradient",
        "PaperInput",
        "PaperOutput",
        "PrivateAlternating",
        "PrivateBiases",
        "PrivateConstant",
        "PrivateOutput",
        "PrivatePasses",
        "PrivateSGD",
        "SequentialSGD",
        "Variational",
    ),
    "sfumato.store": ("new_key", "sign", "verify"),
    "sfumato.estimators.search": ("PrivateSearch",),
}

# A type checker reads the imports above; it must not learn that any name can be asked for.
if not TYPE_CHECKING:

    def __getattr__(name):
        for home, names in _HOMES.items():
            if name in names:
                # Like `from home import name`, where the name may be a module's too.
                globals()[name] = getattr(__import__(home, fromlist=[name]), name)
                return globals()[name]
        raise AttributeError(f"module 'sfumato' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})
