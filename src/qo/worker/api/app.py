"""An application: the handlers of a team's task types, by name.

app = qo.App()

@app.task("send_email")
async def send_email(input): ...
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from qo.core.limit_shares import Limit
from qo.errors import NotFound, UsageError
from qo.queue.options import check_task_type
from qo.worker.api.handler import BATCH_WAIT_S, DEFAULT, Default, Handler, Rate, make_handler

if TYPE_CHECKING:
    from qo.worker.layers.stack import Layer

F = TypeVar("F", bound=Callable[..., Any])

HOOK_PREFIX = "on_failure:"  # Of the task types of hooks.
ALL_TYPES = "*"


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that has failed for good, as a hook gets it: annotate its parameter with this."""

    task_id: str
    task_type: str
    attempt: int
    error: str | None
    failed_at: datetime


class App:
    def __init__(self, *, layers: Sequence[Layer] = ()) -> None:
        """``layers`` wrap every handler of the app, the first outermost."""
        self.layers = tuple(layers)
        self._handlers: dict[str, Handler] = {}
        self._has_hooks = False

    def task(
        self,
        task_type: str,
        *,
        kind: str | None = None,
        timeout_s: float | Default | None = DEFAULT,
        concurrency: int | None = None,
        rate: Rate | None = None,
        limit: Limit | None = None,
        layers: Sequence[Layer] = (),
        batch: int | None = None,
        batch_wait_s: float = BATCH_WAIT_S,
    ) -> Callable[[F], F]:
        """Register a function for a task type. It takes the input and, if it has a second parameter, a Context.

        ``kind`` is where it runs: an ``async def`` in the event loop, a plain function on a thread or, with
        kind="process", in a child process. ``timeout_s`` stops an attempt (None: never); the timeout of a submitted
        task takes precedence. ``concurrency`` and ``rate`` limit this type within one worker, ``limit``
        limits it over all workers.

        With ``batch``, one call takes up to so many tasks: a list of (input, context). It begins when there are so
        many, or when the first has waited for ``batch_wait_s``, and returns None or a list with the output or the
        exception of each task. ``concurrency`` is then the number of calls at a time, 1 unless set.
        """
        if not isinstance(task_type, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError('name the task type that the function handles: @app.task("send_email")')

        def register(function: F) -> F:
            if task_type in self._handlers:
                raise UsageError(f"task type {task_type!r} has two handlers: remove or rename one")
            self._handlers[task_type] = make_handler(
                task_type,
                function,
                kind=kind,
                timeout_s=timeout_s,
                concurrency=concurrency,
                rate=rate,
                limit=limit if limit is None or limit.name else replace(limit, name=task_type),
                layers=tuple(layers),
                batch=batch,
                batch_wait_s=batch_wait_s,
            )
            return function

        return register

    def on_failure(self, task_type: str = ALL_TYPES, **options: Any) -> Callable[[F], F]:
        """Register a function that is called when a task of this type, or of any, has failed for good.

        It is a handler like any other, of a task that the queue submits once for each final failure, also if the
        worker has died; so it may be called more than once, as handlers may, and its own failure does not change the
        failed task. Its input is a ``Failure``. ``options`` are those of ``task``. A hook for one type is called
        instead of the one for all, and ``Options(on_failure=...)`` of a task instead of both.
        """
        check_task_type(hook := f"{HOOK_PREFIX}{task_type}", "on_failure")
        self._has_hooks = True
        return self.task(hook, **options)

    def hook_type(self, task_type: str) -> str | None:
        """Return the task type of the hook for this one; None: it has none. Hooks themselves have none."""
        if not self._has_hooks or task_type.startswith(HOOK_PREFIX):
            return None
        hooks = (f"{HOOK_PREFIX}{task_type}", f"{HOOK_PREFIX}{ALL_TYPES}")
        return next((hook for hook in hooks if hook in self._handlers), None)

    def handler(self, task_type: str) -> Handler | None:
        return self._handlers.get(task_type)

    @property
    def handlers(self) -> tuple[Handler, ...]:
        return tuple(self._handlers.values())

    @property
    def task_types(self) -> tuple[str, ...]:
        return tuple(sorted(self._handlers))


def load_app(target: str) -> App:
    """Import the app ``module:attribute``. The working directory is on the import path, as for ``python -m``."""
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
        raise UsageError(f"importing {module_name!r} failed{_where(error)}: {error}") from error
    except Exception as error:
        raise UsageError(
            f"importing {module_name!r} failed{_where(error)}: {type(error).__name__}: {error}"
        ) from error
    app = getattr(module, attribute, None)
    if not isinstance(app, App):
        raise NotFound(f"{module_name!r} has no qo.App named {attribute!r}")
    return app


def _where(error: BaseException) -> str:
    """Return the line of the user's code that failed, if one did."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    own = [frame for frame in frames if not frame.filename.startswith(str(Path(__file__).parents[2]))]
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
