"""An application: the handlers of a team's task types, by name.

app = qo.App()

@app.task("send_email")
async def send_email(input): ...
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from qo.errors import NotFound, UsageError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Handler:
    task_type: str
    function: Callable[..., Any]
    is_async: bool
    wants_context: bool  # Read from the signature, never guessed by calling it.


class App:
    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def task(self, task_type: str) -> Callable[[F], F]:
        """Register a function for a task type. It takes the input and, if it has a second parameter, a Context."""
        if not isinstance(task_type, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError('name the task type that the function handles: @app.task("send_email")')

        def register(function: F) -> F:
            if task_type in self._handlers:
                raise UsageError(f"task type {task_type!r} has two handlers: remove or rename one")
            self._handlers[task_type] = _handler(task_type, function)
            return function

        return register

    def handler(self, task_type: str) -> Handler | None:
        return self._handlers.get(task_type)

    @property
    def task_types(self) -> tuple[str, ...]:
        return tuple(sorted(self._handlers))


def _handler(task_type: str, function: Callable[..., Any]) -> Handler:
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind in positional]
    needed = [p for p in parameters if p.default is inspect.Parameter.empty]
    if not parameters or len(needed) > 2:
        raise UsageError(
            f"the handler of {task_type!r} must take the input and, if it wants one, a context: "
            f"def {getattr(function, '__name__', 'handler')}(input) or (input, ctx)"
        )
    wants_context = len(needed) == 2 or (len(parameters) > 1 and parameters[1].name in ("ctx", "context"))
    return Handler(task_type, function, inspect.iscoroutinefunction(function), wants_context)


def load_app(target: str) -> App:
    """The app named by ``module:attribute``. The working directory is on the import path, as for ``python -m``."""
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"{target!r} does not name an app: write module:attribute, for example tasks:app")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise NotFound(f"there is no module {module_name!r} in {here} or on the import path") from error
        raise UsageError(f"importing {module_name!r} failed: {error}") from error
    except Exception as error:
        raise UsageError(f"importing {module_name!r} failed: {type(error).__name__}: {error}") from error
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        raise NotFound(f"{module_name!r} has no qo.App named {attribute!r}")
    return app
