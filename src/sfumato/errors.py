"""Errors that tell the reader what to do next.

Each is also a ``ValueError``, ``KeyError`` or ``OSError``, so that code that knows nothing of
sfumato can still catch it.
"""

from __future__ import annotations

import sys


class SfumatoError(Exception):
    """Base of every error that sfumato raises on purpose.

    ``page`` names the page of the documentation that explains it, where there is one for all of its
    kind. The command line prints it, and otherwise that of the command.

    Examples
    --------
    >>> import sfumato as sf
    >>> try:
    ...     sf.load("nowhere")
    ... except sf.SfumatoError as error:
    ...     print(error)
    there is no model folder nowhere
    """

    page: str = ""


class DataError(SfumatoError, ValueError):
    """The data or a column of it cannot be used as given.

    Examples
    --------
    >>> import sfumato as sf
    >>> sf.read(
    ...     {"user": ["ann"], "stars": [5]}, modes=["user", "film"], value="stars"
    ... )
    Traceback (most recent call last):
        ...
    sfumato.errors.DataError: cannot read a dict: give a path, a NumPy or ...
    """


class SettingError(SfumatoError, ValueError):
    """A setting is impossible, or does not fit the data's shape.

    Examples
    --------
    >>> import sfumato as sf
    >>> sf.CP(rank=0).fit(sf.synthetic.cp((5, 4), 1, missing=0.1).tensor)
    Traceback (most recent call last):
        ...
    sfumato.errors.SettingError: rank must be a whole number from 1 on, got 0
    """


class UnknownLabelError(SfumatoError, LookupError):
    """A label that the model has not seen in training.

    Examples
    --------
    >>> import sfumato as sf
    >>> tensor = sf.synthetic.cp(
    ...     (5, 4), 1, missing=0.1, modes=["user", "item"]
    ... ).tensor
    >>> sf.Biases().fit(tensor).predict(user=99, item=0)
    Traceback (most recent call last):
        ...
    sfumato.errors.UnknownLabelError: mode 'user' has no level 99: it was not ...
    """


class ModelFileError(SfumatoError, OSError):
    """A model folder is missing, foreign, damaged or of a later version.

    Examples
    --------
    >>> import sfumato as sf
    >>> sf.load("nowhere")
    Traceback (most recent call last):
        ...
    sfumato.errors.ModelFileError: there is no model folder nowhere
    """


class SaveError(ModelFileError):
    """A model that could not be written; it is still in memory.

    Parameters
    ----------
    folder : object
        Where it should have gone.
    reason : str
        What went wrong, in words.

    Examples
    --------
    >>> import sfumato as sf
    >>> print(sf.SaveError("model", "no space left"))
    model could not be written: no space left. What was there before is as it was,
        and the fitted model is still in memory: save it to another folder
    """

    def __init__(self, folder: object, reason: str) -> None:
        self.folder, self.reason = folder, reason
        super().__init__(
            f"{folder} could not be written: {reason}. What was there before is as it was, and the "
            "fitted model is still in memory: save it to another folder"
        )

    def __reduce__(self) -> tuple[type[SaveError], tuple[object, str]]:
        return type(self), (self.folder, self.reason)


class SignatureError(ModelFileError):
    """A release without a signature, with a wrong one, or one by another key.

    Examples
    --------
    >>> import sfumato as sf
    >>> model = sf.Biases().fit(sf.synthetic.cp((5, 4), 1, missing=0.1).tensor)
    >>> folder, key = model.save("model"), sf.new_key("key")
    >>> sf.verify("model", "key.pub")
    Traceback (most recent call last):
        ...
    sfumato.errors.SignatureError: model is not signed
    """

    page = "docs/cli.md#whose-a-release-is"


class OldFormatWarning(UserWarning):
    """A model folder of an earlier version, which shows no changes to its files.

    Examples
    --------
    Where such a folder must not go unnoticed:

    >>> import warnings, sfumato as sf
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", sf.OldFormatWarning)
    ...     folder = (
    ...         sf.Biases()
    ...         .fit(sf.synthetic.cp((5, 4), 1, missing=0.1).tensor)
    ...         .save("model")
    ...     )
    ...     loaded = sf.load(folder)
    """


class NotFittedError(SfumatoError, ValueError, AttributeError):
    """A model is used before it is fitted.

    Examples
    --------
    >>> import sfumato as sf
    >>> sf.CP().predict(user=1, item=2)
    Traceback (most recent call last):
        ...
    sfumato.errors.NotFittedError: this CP is not fitted yet; call fit first
    """


def not_fitted(what: str, how: str = "call fit first") -> NotFittedError:
    """The error of a model that is used too early.

    Where scikit-learn is in use it is scikit-learn's own error as well: whoever catches that has
    imported it, and nobody else has to wait for the import.
    """
    message = f"this {what} is not fitted yet; {how}"
    theirs = sys.modules.get("sklearn.exceptions")
    if theirs is None:
        return NotFittedError(message)
    kind: type[NotFittedError] = type("NotFittedError", (_TheirsToo, theirs.NotFittedError), {})
    return kind(message)


class _TheirsToo(NotFittedError):
    """Pickled as what it is to those who have no scikit-learn."""

    def __reduce__(self) -> tuple[type[NotFittedError], tuple[str]]:
        return NotFittedError, (str(self),)


class ReleaseError(SfumatoError):
    """A release of something that no guarantee covers, or only with reservations.

    Examples
    --------
    >>> import sfumato as sf
    >>> model = sf.Biases().fit(sf.synthetic.cp((5, 4), 1, missing=0.1).tensor)
    >>> model.release("release")
    Traceback (most recent call last):
        ...
    sfumato.errors.ReleaseError: this model is not private: fit it with ...
    """

    page = "docs/promise.md#proven-or-claimed"


class BudgetError(SfumatoError):
    """A budget that does not cover what was asked for, or a ledger that cannot be used.

    Examples
    --------
    >>> import sfumato as sf
    >>> ledger = dict(ledger="spent.jsonl", limit=sf.Budget(1.0))
    >>> ratings = sf.synthetic.ratings_like(30, 20, 5, 400)
    >>> public = sf.Public(labels=True, entries=400)
    >>> for _ in range(2):
    ...     privacy = sf.Privacy(
    ...         0.8, unit="entry", local=None, public=public, **ledger
    ...     )
    ...     model = sf.Biases(privacy=privacy).fit(ratings)
    Traceback (most recent call last):
        ...
    sfumato.errors.BudgetError: the budget of ...spent.jsonl is epsilon 1; 1 ...
    """

    page = "docs/promise.md#several-fits"


class SiteLostError(SfumatoError, ConnectionError):
    """A holder of data that a fit needs is gone, or does not answer in time.

    Who leads a study (:func:`sfumato.lead`) calls again in the same folder once the site is back.

    Examples
    --------
    >>> import sfumato as sf
    >>> from sfumato.owners.hub import InProcess
    >>> from sfumato.owners.leading import Patience
    >>> public = sf.Public(labels={"item": range(20)})
    >>> privacy = sf.Privacy(1.0, unit="entry", local="user", public=public)
    >>> sites = {"north": 40, "south": 40}
    >>> study = sf.make_study(
    ...     sf.CP(privacy=privacy), ["user", "item"], sites, bounds=(1, 5)
    ... )
    >>> def nobody(topic, message):
    ...     raise ConnectionError
    >>> hub = InProcess(dict.fromkeys(sites, nobody))
    >>> sf.lead(study, hub, "leader", patience=Patience(answer=0.1, lost=0.1))
    Traceback (most recent call last):
        ...
    sfumato.errors.SiteLostError: in round 1 north, south did not answer ...
    """

    page = "docs/owners.md#on-one-machine-in-three-terminals"


class MissingExtraError(SettingError):
    """Something that needs a package which is not installed."""

    def __init__(self, extra: str, what: str) -> None:
        self.extra, self.what = extra, what
        super().__init__(f'{what} needs more packages: pip install "sfumato[{extra}]"')

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        return type(self), (self.extra, self.what)


class PrivacyWarning(UserWarning):
    """A promise that is kept, but that is worth little: a huge epsilon, or one unit among few.

    Examples
    --------
    >>> import warnings, sfumato as sf
    >>> privacy = sf.Privacy(epsilon=50, unit="value", method="bias")
    >>> with warnings.catch_warnings(record=True) as told:
    ...     warnings.simplefilter("always")
    ...     plan = sf.CP(privacy=privacy).plan(
    ...         [sf.Mode("user", 9), sf.Mode("item", 9)], bounds=(1, 5)
    ...     )
    >>> told[0].category.__name__
    'PrivacyWarning'
    """
