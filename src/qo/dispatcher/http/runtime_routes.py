"""Routes for runtimes and their queues."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa

from qo.api.contract.body import Answer
from qo.dispatcher.http.routes import ContextParam, Routes
from qo.dispatcher.state import schema
from qo.dispatcher.views import unserved_queues
from qo.pipeline.registry import Launcher, Runtime

QUEUES_MAX = 1000  # Some for each runtime: a handful.


class QueueLine(Answer):
    name: str
    runtime: str | None = None  # None: the registry does not have it any more.
    depth: int
    oldest_s: float
    tripped_at: datetime | None = None  # Set while the producers of the queue are paused.
    reason: str | None = None
    unserved: str | None = None  # Set, to what can be done, while no worker takes from it.
    measured_at: datetime


class QueuesAnswer(Answer):
    queues: list[QueueLine]


class RuntimeQueue(Answer):
    name: str
    weight: int  # The share of a worker's slots that it gets, against the other queues.
    max_in_flight: int | None = None


class RuntimeLine(Answer):
    name: str
    kind: str  # The built-in runtime that it works like.
    launcher: str  # queue: workers; invoke, in_process: the dispatcher.
    queues: list[RuntimeQueue]
    timeout_seconds: float
    image: str | None = None  # For whoever starts workers, as are memory, cpu and idle_timeout.
    memory: str | None = None
    cpu: float | None = None
    idle_timeout: str | None = None
    max_in_flight: int | None = None
    operator_limits: dict[str, int] = {}  # noqa: RUF012 - pydantic copies it.
    # Of functions that the dispatcher starts; null for other runtimes.
    parallel: int | None = None  # How many of them one dispatcher runs at a time.
    network: bool | None = None  # Whether they reach the network.
    env: list[str] | None = None  # Names of the dispatcher's variables that they may request.


class RuntimesAnswer(Answer):
    runtimes: list[RuntimeLine]


def list_queues(context: ContextParam) -> QueuesAnswer:
    """List the queues with their pressure, as last measured."""
    with context.state.read() as tx:
        rows = tx.all(sa.select(schema.queues).order_by(schema.queues.c.name).limit(QUEUES_MAX))
        unserved = unserved_queues.find_unserved(tx, context.registry, [row["name"] for row in rows])
    lines: list[QueueLine] = []
    for row in rows:
        runtime = context.registry.of_queue(row["name"])
        about = {"runtime": None if runtime is None else runtime.name, "unserved": unserved.get(row["name"])}
        lines.append(QueueLine.model_validate({**row, **about}))
    return QueuesAnswer(queues=lines)


def list_runtimes(context: ContextParam) -> RuntimesAnswer:
    """List the runtimes that jobs may name, as the settings of this dispatcher have them."""
    return RuntimesAnswer(runtimes=[_line(each) for _, each in sorted(context.registry.runtimes.items())])


def _line(runtime: Runtime) -> RuntimeLine:
    starts_functions = runtime.launcher is Launcher.INVOKE
    return RuntimeLine(
        name=runtime.name,
        kind=runtime.works_like,
        launcher=runtime.launcher,
        queues=[
            RuntimeQueue(
                name=name, weight=runtime.weights.get(name, 1), max_in_flight=runtime.queue_limits.get(name)
            )
            for name in runtime.queues
        ],
        timeout_seconds=runtime.timeout_seconds,
        image=runtime.image,
        memory=runtime.memory,
        cpu=runtime.cpu,
        idle_timeout=runtime.idle_timeout,
        max_in_flight=runtime.max_in_flight,
        operator_limits=dict(runtime.operator_limits),
        parallel=runtime.parallel if starts_functions else None,
        network=runtime.reaches_network,
        env=list(runtime.env) if starts_functions else None,
    )


def install(routes: Routes) -> None:
    routes.get("/v1/queues", list_queues)
    routes.get("/v1/runtimes", list_runtimes)
