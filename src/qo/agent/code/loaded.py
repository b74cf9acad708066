"""Code that is ready to run: where functions are found by the names that jobs give them."""

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
        """Of the operator's code, as it is reported; None: the worker's own, whatever that is."""
        ...

    @property
    def packages(self) -> Sequence[str]:
        """Installed packages that differ from those recorded with it, in words."""
        ...

    @property
    def shipped(self) -> Path | None:
        """What to send to processes that do not see this machine's files; None: find that out by the function."""
        ...

    def load(self, operator: str) -> Callable[..., Any]:
        """The function that ``module:function`` names. Raises NotFound or UsageError, which no retry would mend."""
        ...


@dataclass(frozen=True, slots=True)
class OwnCode:
    """What the worker finds in its directory and on its import path."""

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
    """The code of one version. ``package``: below which its modules are imported; empty: by their own names."""

    fingerprint: str | None
    package: str
    packages: Sequence[str] = ()
    shipped: Path | None = None

    def load(self, operator: str) -> Callable[..., Any]:
        module, _, path = operator.partition(":")
        full = f"{self.package}.{module}" if self.package else module
        return find_function(full, path, module, "in the code that was deployed: name it under 'include'")


def find_function(module: str, path: str, name: str, where: str) -> Callable[..., Any]:
    """The function ``path`` of a module. ``name`` and ``where``: how messages call the module and its place."""
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
            raise NotFound(f"there is no module {name!r} {where}") from error
        raise _broken(name, error) from error
    except (ImportError, SyntaxError) as error:
        raise _broken(name, error) from error
    for attribute in path.split("."):
        found = getattr(found, attribute, None)
    if not callable(found):
        raise NotFound(f"{name!r} has no function {path!r}")
    return found


def _broken(module: str, error: Exception) -> UsageError:
    """Of code that cannot work before somebody changes it, or what is installed."""
    return UsageError(f"{module!r} cannot be imported: {text_of(error)}")
