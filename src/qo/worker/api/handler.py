"""A handler: the function of one task type, and its requirements."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from qo.core.limit_shares import Limit
from qo.errors import UsageError
from qo.queue.options import DELAY_S_MAX, check_number
from qo.worker.api.signals import Reject

if TYPE_CHECKING:
    from qo.worker.layers.stack import Layer


class Kind(StrEnum):
    """Where a handler runs."""

    ASYNC = "async"  # In the worker's event loop.
    THREAD = "thread"  # On a thread of the worker's: a plain function that waits more than it computes.
    PROCESS = "process"  # In a child process: computes for long, uses much memory, or may crash.
    SPARK = "spark"  # In an executor that the worker gets from outside.


class Default:
    """The value of a limit that was not set. None would mean: no limit."""

    def __repr__(self) -> str:
        return "the worker's default"


DEFAULT: Final = Default()

BATCH_MAX = 10_000
BATCH_WAIT_S = 0.2


@dataclass(frozen=True, slots=True)
class Rate:
    """At most so many starts in so many seconds."""

    starts: int
    per_s: float = 1.0

    def __post_init__(self) -> None:
        check_number("starts", self.starts, 1, 1_000_000)
        check_number("per_s", self.per_s, 0.001, DELAY_S_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    task_type: str
    function: Callable[..., Any]
    kind: Kind
    wants_context: bool  # From the signature.
    input_type: Any = None  # The input is converted to it; None: it is passed as it is.
    timeout_s: float | Default | None = DEFAULT  # None: no limit.
    concurrency: int | None = None  # How many tasks of this type one worker runs at a time.
    rate: Rate | None = None
    limit: Limit | None = None  # Over all workers.
    layers: tuple[Layer, ...] = ()
    batch: int | None = None  # The most tasks that one call takes; None: one, and not in a list.
    batch_wait_s: float = BATCH_WAIT_S  # How long a task waits for others to be called with.
    limit_key: str | None = None  # Of the task that it is for, if its type has a limit for each key.

    @property
    def held_max(self) -> int | None:
        """How many tasks of this type one worker may hold; None: no limit. Of a batch handler, ``concurrency`` is the
        number of calls at a time."""
        return self.concurrency if self.batch is None else self.batch * (self.concurrency or 1)


async def _unknown(input: Any, ctx: Any) -> None:
    raise Reject(
        f"no handler: worker {ctx.worker_id} knows no task type {ctx.task.task_type!r}, and fails such tasks"
    )


UNKNOWN = Handler(task_type="", function=_unknown, kind=Kind.ASYNC, wants_context=True)


def make_handler(task_type: str, function: Callable[..., Any], **options: Any) -> Handler:
    """Make a handler from a function. Raises UsageError if its signature or an option is wrong."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [p for p in inspect.signature(function).parameters.values() if p.kind in positional]
    needed = [p for p in parameters if p.default is inspect.Parameter.empty]
    if options.get("batch") is not None:
        return _make_batch_handler(task_type, function, parameters, options)
    if not parameters or len(needed) > 2:
        raise UsageError(
            f"the handler of {task_type!r} must take the input and, if it wants one, a context: "
            f"def {getattr(function, '__name__', 'handler')}(input) or (input, ctx)"
        )
    wants_context = len(needed) == 2 or (len(parameters) > 1 and parameters[1].name in ("ctx", "context"))
    return Handler(
        task_type=task_type,
        function=function,
        kind=_kind(task_type, function, options.pop("kind", None)),
        wants_context=wants_context,
        input_type=_input_type(function, parameters[0]),
        **_check_options(task_type, options),
    )


def _make_batch_handler(
    task_type: str, function: Callable[..., Any], parameters: list[inspect.Parameter], options: dict[str, Any]
) -> Handler:
    if len(parameters) != 1:
        raise UsageError(
            f"the handler of {task_type!r} takes batches, so it must have one parameter, the list of (input, context): "
            f"def {getattr(function, '__name__', 'handler')}(items)"
        )
    kind = _kind(task_type, function, options.pop("kind", None))
    if kind is Kind.SPARK:
        raise UsageError(
            f"the handler of {task_type!r} is of kind {kind}, which cannot take batches: use async, thread or process"
        )
    check_number(f"batch of {task_type!r}", options["batch"], 1, BATCH_MAX)
    check_number(f"batch_wait_s of {task_type!r}", options.get("batch_wait_s"), 0, 3_600)
    return Handler(
        task_type=task_type,
        function=function,
        kind=kind,
        wants_context=False,
        input_type=_item_type(function, parameters[0]),
        **_check_options(task_type, options),
    )


def _kind(task_type: str, function: Callable[..., Any], name: str | None) -> Kind:
    is_async = inspect.iscoroutinefunction(function)
    if name is None:
        return Kind.ASYNC if is_async else Kind.THREAD
    try:
        kind = Kind(name)
    except ValueError:
        raise UsageError(f"{name!r} is not a kind of handler: use one of {', '.join(Kind)}") from None
    if is_async is not (kind is Kind.ASYNC):
        form = "an async def" if kind is Kind.ASYNC else "a plain def"
        raise UsageError(f"the handler of {task_type!r} is of kind {kind}, so it must be {form}")
    return kind


def _item_type(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return the type of one input of a batch: T in ``items: list[tuple[T, Context]]``."""
    declared = _declared_type(function, parameter)
    for _ in range(2):
        if typing.get_origin(declared) not in (list, tuple):
            return None
        declared = typing.get_args(declared)[0]
    return _convertible(declared)


def _input_type(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    return _convertible(_declared_type(function, parameter))


def _declared_type(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    try:
        return typing.get_type_hints(function).get(parameter.name)
    except Exception:  # An annotation that names something imported for type checkers only.
        return None


def _convertible(declared: Any) -> Any:
    plain = (Any, object, dict, list, str, int, float, bool)
    if declared is None or declared in plain or typing.get_origin(declared) in (dict, list):
        return None
    return declared if isinstance(declared, type) else None


def _check_options(task_type: str, options: dict[str, Any]) -> dict[str, Any]:
    timeout_s = options.get("timeout_s", DEFAULT)
    if not isinstance(timeout_s, Default):
        check_number(f"timeout_s of {task_type!r}", timeout_s, 0.001, DELAY_S_MAX)
    check_number(f"concurrency of {task_type!r}", options.get("concurrency"), 1, 1_000_000)
    return options
