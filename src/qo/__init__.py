"""qo: a task queue whose only backend is a bucket.

    import qo

    app = qo.App()

    @app.task("send_email")
    async def send_email(input): ...

    async with qo.connect() as queue:
        task = await queue.submit("send_email", {"to": "ada@example.com"})

Names are loaded when they are first used, so that ``import qo`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qo.version import VERSION

if TYPE_CHECKING:
    from qo.agent.operator_run import Run
    from qo.core.limit_shares import Limit
    from qo.core.task import RetryPolicy, Status, Task
    from qo.core.uniqueness import Unique
    from qo.errors import QoError
    from qo.pipeline.declare import Pipeline
    from qo.pipeline.expect import (
        accepted,
        condition,
        freshness,
        in_partition,
        not_null,
        range,
        references,
        rows,
        unique,
    )
    from qo.queue.connecting import blocking, connect
    from qo.queue.flow_plan import FlowPlan, chain, dag, group
    from qo.queue.listing import Filter
    from qo.queue.options import NewTask, Options
    from qo.queue.queue import Claim, Queue
    from qo.queue.submitter import Submission
    from qo.spark.io.reader import read
    from qo.worker.api.app import App, Failure
    from qo.worker.api.context import BlockingContext, Context
    from qo.worker.api.handler import Rate
    from qo.worker.api.signals import Reject, Reschedule, Retry
    from qo.worker.config import WorkerConfig
    from qo.worker.loop.cancel import Stopped
    from qo.worker.worker import Worker

__version__ = VERSION

_HOMES = {
    "App": "qo.worker.api.app",
    "BlockingContext": "qo.worker.api.context",
    "Claim": "qo.queue.queue",
    "Context": "qo.worker.api.context",
    "Failure": "qo.worker.api.app",
    "Filter": "qo.queue.listing",
    "FlowPlan": "qo.queue.flow_plan",
    "Limit": "qo.core.limit_shares",
    "NewTask": "qo.queue.options",
    "Options": "qo.queue.options",
    "Pipeline": "qo.pipeline.declare",
    "QoError": "qo.errors",
    "Queue": "qo.queue.queue",
    "Rate": "qo.worker.api.handler",
    "Reject": "qo.worker.api.signals",
    "Reschedule": "qo.worker.api.signals",
    "Retry": "qo.worker.api.signals",
    "RetryPolicy": "qo.core.task",
    "Run": "qo.agent.operator_run",
    "Status": "qo.core.task",
    "Stopped": "qo.worker.loop.cancel",
    "Submission": "qo.queue.submitter",
    "Task": "qo.core.task",
    "Unique": "qo.core.uniqueness",
    "Worker": "qo.worker.worker",
    "WorkerConfig": "qo.worker.config",
    "accepted": "qo.pipeline.expect",
    "blocking": "qo.queue.connecting",
    "chain": "qo.queue.flow_plan",
    "condition": "qo.pipeline.expect",
    "connect": "qo.queue.connecting",
    "dag": "qo.queue.flow_plan",
    "freshness": "qo.pipeline.expect",
    "in_partition": "qo.pipeline.expect",
    "group": "qo.queue.flow_plan",
    "not_null": "qo.pipeline.expect",
    "range": "qo.pipeline.expect",
    "read": "qo.spark.io.reader",
    "references": "qo.pipeline.expect",
    "rows": "qo.pipeline.expect",
    "unique": "qo.pipeline.expect",
}

__all__ = [
    "App",
    "BlockingContext",
    "Claim",
    "Context",
    "Failure",
    "Filter",
    "FlowPlan",
    "Limit",
    "NewTask",
    "Options",
    "Pipeline",
    "QoError",
    "Queue",
    "Rate",
    "Reject",
    "Reschedule",
    "Retry",
    "RetryPolicy",
    "Run",
    "Status",
    "Stopped",
    "Submission",
    "Task",
    "Unique",
    "Worker",
    "WorkerConfig",
    "accepted",
    "blocking",
    "chain",
    "condition",
    "connect",
    "dag",
    "freshness",
    "group",
    "in_partition",
    "not_null",
    "range",
    "read",
    "references",
    "rows",
    "unique",
]


# What %load_ext and %unload_ext of IPython ask for. People need neither, so they are not in __all__.
_EXTENSION = {"load_ipython_extension": "load", "unload_ipython_extension": "unload"}


def __getattr__(name: str) -> Any:
    if name in _EXTENSION:
        return getattr(import_module("qo.cli.run.notebook"), _EXTENSION[name])
    if name not in _HOMES:
        raise AttributeError(f"module 'qo' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
