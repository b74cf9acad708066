"""The worker process of a runtime: takes wake-ups from its queue, claims tasks and runs operators."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from qo.agent.agent import WAKE, Agent
from qo.agent.code.bundle_cache import Codes, CodeStore
from qo.agent.code.loaded import find_function
from qo.agent.code.version_processes import VersionProcesses
from qo.agent.data_access import DataAccesses
from qo.agent.heartbeats import HeartbeatThread
from qo.agent.lineage import LineageReporter
from qo.agent.logs.capture import capturing
from qo.agent.logs.log_thread import LogThread
from qo.agent.operators import Executor
from qo.api.internal_client import DispatcherClient, internal_url
from qo.config.kinds import parse_queues
from qo.config.settings import DEFAULT as DEFAULT_ORIGIN
from qo.config.settings import Settings
from qo.core.idleness import longest_idle_s
from qo.core.run_log import Limits
from qo.dispatcher.auth.local_tokens import PresentedToken, presented_token
from qo.dispatcher.outbox.queues import prepare
from qo.errors import Forbidden, Unauthenticated, Unavailable, UsageError
from qo.pipeline.registry import SPARK, Runtime, configured_registry
from qo.queue.connecting import connect
from qo.store.blocking_files import BlockingFiles
from qo.store.directory import open_directory
from qo.worker.api.app import App
from qo.worker.idle_watch import BY_JOBS, IdleLimit, idle_limit
from qo.worker.observe.secrets import register_secret
from qo.worker.observe.stats import plain_counts
from qo.worker.queue_group import run_queues
from qo.worker.service import run_worker

log = logging.getLogger(__name__)

CHECK_TOKEN_S = 3.0
KEPT_FREE = 1  # Slots that the tasks of one queue leave to each other queue of the worker.

Executors = Mapping[str, str]  # By kind of runtime, the module:function that opens its executor.
PLAIN: Executors = {"python": "qo.agent.operators:open_executor"}


async def run_runtime(
    settings: Settings,
    runtime: str,
    executors: Executors = PLAIN,
    *,
    stop_when_empty: bool = False,
    kills: bool = False,
    on_ui: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Run the tasks of one runtime, from all its queues or those of ``worker.queue``, until told to stop, as
    ``run_worker`` does. Return the counters.

    ``on_ui`` is called, on any thread, with the address of the executor's own user interface if it has one.
    Raises NotFound for an unknown runtime, UsageError for one that cannot run here, or has no such queue.
    """
    served = configured_registry(settings.runtimes).with_workers(runtime)
    opener = _find_opener(served, executors)
    settings = with_queues(with_spark_slots(settings, served), served)
    storage = BlockingFiles(settings, asyncio.get_running_loop())
    # Before a Spark session starts, since its Python processes get the import path of that moment.
    codes = CodeStore(storage, packages=settings.worker.packages)
    processes = VersionProcesses(settings, opener, codes)
    try:
        async with open_agent(settings, opener, codes, storage, processes, on_ui) as agent:
            credentials = presented_token(settings.dispatcher)
            await check_token(internal_url(settings.dispatcher), credentials)
            app = App()
            # The job limits how long a run may take; the wake-up itself has no limit.
            app.task(WAKE, timeout_s=None)(agent.wake)
            names = list(parse_queues(settings.worker.queue))
            limit = _idle_limit(settings, served, agent)
            if len(names) > 1:
                return await run_queues(
                    app, settings, stop_when_empty=stop_when_empty, kills=kills, kept_free=KEPT_FREE, limit=limit
                )
            queue_at = await prepare(settings, names[0])
            async with connect(queue_at) as queue:
                stats = await run_worker(
                    queue, app, queue_at, stop_when_empty=stop_when_empty, kills=kills, limit=limit
                )
                return plain_counts(stats)
    finally:
        await processes.close()
        await storage.close()
        codes.close()


@asynccontextmanager
async def open_agent(
    settings: Settings,
    opener: str,
    codes: Codes,
    storage: BlockingFiles | None = None,
    processes: VersionProcesses | None = None,
    on_ui: Callable[[str], None] | None = None,
) -> AsyncGenerator[Agent]:
    """Open an agent for this process. ``opener``: module:function of its executor. The caller closes ``storage``."""
    module, _, name = opener.partition(":")
    executor: Executor = find_function(module, name, module, "in qo")(settings, on_ui)
    token = presented_token(settings.dispatcher).token
    register_secret(token)  # It may come from a file, so the redaction does not know it yet.

    def connect_client() -> DispatcherClient:
        return DispatcherClient(internal_url(settings.dispatcher), token)

    heartbeats = HeartbeatThread(connect_client)
    files = storage or BlockingFiles(settings, asyncio.get_running_loop())
    data = DataAccesses(settings, files, is_scoped=executor.is_scoped)
    client = connect_client()
    heartbeats.start()
    try:
        dispatcher = settings.dispatcher
        async with LineageReporter(dispatcher.data_root, files, dispatcher.lineage_url) as lineage:
            secrets_dir = Path(dispatcher.secrets_dir)
            with open_logs(settings) as logs:
                yield Agent(
                    client, heartbeats, executor, files, secrets_dir, lineage, codes, processes, logs, data
                )
    finally:
        await data.close()
        heartbeats.stop()
        await client.close()
        if storage is None:
            await files.close()
        await asyncio.to_thread(executor.close)


@contextmanager
def open_logs(settings: Settings) -> Generator[LogThread | None]:
    """Capture what attempts print within the block, and write it; None if none of it is to be kept."""
    bytes_max = settings.worker.run_log_bytes
    if bytes_max == 0:
        yield None
        return
    logs = LogThread(lambda location: open_directory(location, settings), Limits(bytes_max))
    logs.start()
    try:
        with capturing():
            yield logs
    finally:
        logs.stop()


def with_queues(settings: Settings, runtime: Runtime) -> Settings:
    """Return the settings with the queues to serve: those that are set, with the weights that the runtime gives them
    unless they are set, too; otherwise all of the runtime. Raises UsageError for a queue that is not of the runtime."""
    weights = {name: runtime.weights.get(name, 1) for name in runtime.queues}
    served = parse_queues(settings.worker.queue) or weights
    for name in served:
        if name not in weights:
            raise UsageError(
                f"the runtime {runtime.name} has no queue {name!r} ({settings.origin('worker.queue')}): it has "
                f"{', '.join(weights)}"
            )
    queues = tuple(f"{name}={weights[name] if own == 1 else own}" for name, own in served.items())
    return replace(settings, worker=replace(settings.worker, queue=queues))


def with_spark_slots(settings: Settings, runtime: Runtime) -> Settings:
    """Limit a Spark worker to the slots of its session, unless its concurrency is set."""
    if runtime.works_like != SPARK or settings.origin("worker.concurrency") != DEFAULT_ORIGIN:
        return settings
    return replace(settings, worker=replace(settings.worker, concurrency=settings.worker.spark_slots))


async def check_token(url: str, credentials: PresentedToken) -> None:
    """Check the worker's token at the dispatcher. Raises Unauthenticated for one that could not claim anything.

    A dispatcher that does not answer is not an error: it may be back when the first wake-up comes.
    """
    try:
        async with DispatcherClient(url, credentials.token, patience_s=CHECK_TOKEN_S) as client:
            await client.check_token()
    except (Unauthenticated, Forbidden) as error:
        raise credentials.explain_refusal(error) from error
    except Unavailable as error:
        log.warning("the dispatcher does not answer yet: %s", error)


def _idle_limit(settings: Settings, runtime: Runtime, agent: Agent) -> IdleLimit:
    if settings.worker.idle_timeout != BY_JOBS:
        return idle_limit(settings)
    return lambda: longest_idle_s(agent.idle_timeouts, runtime.idle_timeout)


def _find_opener(runtime: Runtime, executors: Executors) -> str:
    if runtime.works_like not in executors:
        raise UsageError(f"this worker cannot run {runtime.name!r}: it runs {', '.join(sorted(executors))}")
    return executors[runtime.works_like]
