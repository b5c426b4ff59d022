"""Settings of an estimator by name, as scikit-learn's clone and search expect them."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from typing import Any, Self

from sfumato.errors import SettingError
from sfumato.fit.loop import Progress, Watch
from sfumato.report.progress import watching


class Parametrised:
    """Settings by name, as scikit-learn's clone and search expect them."""

    progress: Watch = None

    def _watched(self) -> AbstractContextManager[Progress | None]:
        """What is told of progress while a fit lasts."""
        return watching(self.progress, f"fitting {type(self).__name__}")

    @classmethod
    def _parameter_names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002
        """The settings, by name.

        Parameters
        ----------
        deep : bool
            Not used: scikit-learn hands it on.

        Returns
        -------
        dict
            By name.
        """
        return {name: getattr(self, name) for name in self._parameter_names()}

    def set_params(self, **settings: Any) -> Self:
        """Change some settings.

        Parameters
        ----------
        **settings
            By name.

        Returns
        -------
        Self
            This estimator.
        """
        for name, value in settings.items():
            if name not in self._parameter_names():
                raise SettingError(
                    f"{type(self).__name__} has no setting {name!r}; it has "
                    f"{', '.join(self._parameter_names())}"
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        given = {k: v for k, v in self.get_params().items() if repr(v) != repr(defaults[k].default)}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in given.items())})"
