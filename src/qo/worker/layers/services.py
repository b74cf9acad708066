"""Building the service of each task type: its handler, wrapped in the layers that apply to it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from qo.core.limit_shares import Limit
from qo.errors import UsageError
from qo.queue.queue import Queue
from qo.worker.api.app import App
from qo.worker.api.handler import UNKNOWN, Handler, Kind
from qo.worker.api.request import Request
from qo.worker.config import WorkerConfig
from qo.worker.executors import Executor
from qo.worker.executors.batches import Batches
from qo.worker.layers import ServiceOptions, default_layers, make_limits
from qo.worker.layers.stack import Service, stack
from qo.worker.loop.admission import Admission
from qo.worker.loop.outcome import Acked, Outcome
from qo.worker.loop.shared_limits import KeyedLimit, SharedLimit, SharedLimits

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Services:
    by_type: Mapping[str, Service]
    executors: Mapping[str, Executor]  # By task type: what calls the function.


def build_services(
    app: App,
    options: ServiceOptions,
    executors: Mapping[Kind, Executor],
    admission: Admission,
    on_late_return: Callable[[], None],
) -> Services:
    """Build the service of each task type. They share the limits of the worker; each has those of its handler."""
    shared = make_limits(options.concurrency_limit, options.rate_limit)
    built: dict[str, Service] = {}
    callers: dict[str, Executor] = {}
    for handler in (*app.handlers, UNKNOWN):
        limits = (*shared, *make_limits(handler.held_max, handler.rate))
        admission.add_gates(handler, limits)
        layers = (*default_layers(options, limits), *app.layers, *handler.layers)
        executor = _executor_of(handler, executors)
        if handler.batch is not None:
            executor = Batches(handler, executor, on_late_return)
        callers[handler.task_type] = executor
        built[handler.task_type] = stack(*layers)(_call_handler(handler, executor, admission))
    return Services(built, callers)


def _executor_of(handler: Handler, executors: Mapping[Kind, Executor]) -> Executor:
    if (executor := executors.get(handler.kind)) is None:
        raise UsageError(
            f"the handler of {handler.task_type!r} is of kind {handler.kind}, which this worker cannot run: give it "
            f"an executor, Worker(..., executors={{{str(handler.kind)!r}: ...}})"
        )
    return executor


def _call_handler(handler: Handler, executor: Executor, admission: Admission) -> Service:
    """Return the innermost service, which calls the handler through its executor."""

    async def call(request: Request) -> Outcome:
        request.check_lease()
        if not request.started:  # A layer may call more than once.
            request.start()
            admission.count_started(handler)
        output = await executor.call(request)
        return output if isinstance(output, Acked) else Acked(output)

    return call


def share_limits(
    app: App, queue: Queue, config: WorkerConfig, admission: Admission, on_room: Callable[[], None]
) -> SharedLimits:
    """Have the limits checked that hold over all workers. Types with the same name share one."""
    shared: dict[str, SharedLimit | KeyedLimit] = {}
    for task_type, limit in limits_by_type(app, config.shared_limits).items():
        if limit.by is None:
            gate = SharedLimit(limit, queue.ambient.monotonic, config.concurrency, config.share_ttl_s)
        else:
            gate = KeyedLimit(limit, queue, config.concurrency, config.share_ttl_s)
        first = shared.setdefault(limit.name, gate)
        if first.limit != limit:
            raise UsageError(f"the limit {limit.name!r} is given twice, and differently")
        admission.share_limit(task_type, first)
    plain = [each for each in shared.values() if isinstance(each, SharedLimit)]
    keyed = [each for each in shared.values() if isinstance(each, KeyedLimit)]
    return SharedLimits(queue, config.worker_id, plain, on_room, keyed)


def limits_by_type(app: App, configured: Mapping[str, Limit]) -> dict[str, Limit]:
    """Return the limits of the app, with the numbers of the configuration where it names a limit or a type. Raises
    UsageError for a type whose limit has a name: one type alone would leave what it shares with others."""
    own = {handler.task_type: handler.limit for handler in app.handlers if handler.limit is not None}
    names = {limit.name for limit in own.values()}
    by_type = {task_type: _configured(limit, configured) for task_type, limit in own.items()}
    for name, limit in configured.items():
        if name in names:
            continue
        if name in own:
            raise UsageError(
                f"worker.limits names the type {name!r}, which has the limit {own[name].name!r}: write that name"
            )
        if name not in app.task_types:
            log.warning("worker.limits names %r, and this worker has no such type and no such limit", name)
        by_type[name] = limit
    return by_type


def _configured(limit: Limit, configured: Mapping[str, Limit]) -> Limit:
    """Return a limit with the numbers of the configuration, if it names it. What it is by stays, unless it says so."""
    numbers = configured.get(limit.name)
    return limit if numbers is None else replace(numbers, by=numbers.by or limit.by)
