"""Errors that tell the reader what to do next.

Each is also a ``ValueError``, ``KeyError`` or ``OSError``, so that code that knows nothing of
sfumato can still catch it.
"""

from __future__ import annotations


class SfumatoError(Exception):
    """Base of every error that sfumato raises on purpose."""


class DataError(SfumatoError, ValueError):
    """The data or a column of it cannot be used as given."""


class SettingError(SfumatoError, ValueError):
    """A setting is impossible, or does not fit the data's shape."""


class UnknownLabelError(SfumatoError, LookupError):
    """A label that the model has not seen in training."""


class ModelFileError(SfumatoError, OSError):
    """A model folder is missing, foreign, damaged or of a later version."""


class SaveError(ModelFileError):
    """A model that could not be written; it is still in memory."""

    def __init__(self, folder: object, reason: str) -> None:
        self.folder, self.reason = folder, reason
        super().__init__(
            f"{folder} could not be written: {reason}. What was there before is as it was, and the "
            "fitted model is still in memory: save it to another folder"
        )

    def __reduce__(self) -> tuple[type[SaveError], tuple[object, str]]:
        return type(self), (self.folder, self.reason)


class SignatureError(ModelFileError):
    """A release without a signature, with a wrong one, or one by another key."""


class OldFormatWarning(UserWarning):
    """A model folder of an earlier version, which shows no changes to its files."""


class NotFittedError(SfumatoError, ValueError, AttributeError):
    """A model is used before it is fitted."""


class ReleaseError(SfumatoError):
    """A release of something that no guarantee covers, or only with reservations."""


class BudgetError(SfumatoError):
    """A budget that does not cover what was asked for, or a ledger that cannot be used."""


class SiteLostError(SfumatoError, ConnectionError):
    """A holder of data that a fit needs is gone, or does not answer in time."""


class MissingExtraError(SettingError):
    """Something that needs a package which is not installed."""

    def __init__(self, extra: str, what: str) -> None:
        self.extra, self.what = extra, what
        super().__init__(f'{what} needs more packages: pip install "sfumato[{extra}]"')

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        return type(self), (self.extra, self.what)


class PrivacyWarning(UserWarning):
    """A promise that is kept, but that is worth little: a huge epsilon, or one unit among few."""
