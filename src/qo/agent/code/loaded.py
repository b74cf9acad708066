"""Code that is ready to run: finds functions by the names that jobs give them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from qo.errors import NotFound, UsageError
from qo.worker.loop.outcome import text_of


class Code(Protocol):
    """What an attempt runs."""

    @property
    def fingerprint(self) -> str | None:
        """The fingerprint of the operator's code, which is reported; None for the worker's own code."""
        ...

    @property
    def packages(self) -> Sequence[str]:
        """In words, the installed packages that differ from the recorded ones."""
        ...

    @property
    def shipped(self) -> Path | None:
        """The zip to send to processes elsewhere; None: determine from the function what to send."""
        ...

    def load(self, operator: str) -> Callable[..., Any]:
        """Return the function that ``module:function`` names. Raises NotFound or UsageError; a retry does not help."""
        ...


@dataclass(frozen=True, slots=True)
class OwnCode:
    """The worker's own code: in its working directory and on its import path."""

    fingerprint: str | None = None
    packages: Sequence[str] = ()
    shipped: Path | None = None

    def load(self, operator: str) -> Callable[..., Any]:
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        module, _, path = operator.partition(":")
        return find_function(module, path, module, f"in {here} or on the import path")


@dataclass(frozen=True, slots=True)
class BundledCode:
    """The code of one version. ``package``: the package of its modules; empty: they have their own names."""

    fingerprint: str | None
    package: str
    packages: Sequence[str] = ()
    shipped: Path | None = None

    def load(self, operator: str) -> Callable[..., Any]:
        module, _, path = operator.partition(":")
        full = f"{self.package}.{module}" if self.package else module
        return find_function(full, path, module, "in the code that was deployed: name it under 'include'")


def find_function(module: str, path: str, name: str, where: str) -> Callable[..., Any]:
    """Return the function ``path`` of a module. ``name`` and ``where``: the module and its place in messages."""
    try:
        function: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
            raise NotFound(f"there is no module {name!r} {where}") from error
        raise _broken(name, error) from error
    except (ImportError, SyntaxError) as error:
        raise _broken(name, error) from error
    for attribute in path.split("."):
        function = getattr(function, attribute, None)
    if not callable(function):
        raise NotFound(f"{name!r} has no function {path!r}")
    return function


def _broken(module: str, error: Exception) -> UsageError:
    """Return the error for code that cannot be imported until it, or the environment, is changed."""
    return UsageError(f"{module!r} cannot be imported: {text_of(error)}")
