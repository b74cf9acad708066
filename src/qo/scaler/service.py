"""The scaler as a process: made from settings, and stopped by signals."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from qo.ambient import SYSTEM, Ambient
from qo.api.public_client import UserClient, local_admin_token
from qo.config.dispatcher import DispatcherSettings
from qo.config.runtimes import RuntimeSettings
from qo.config.scaling import LauncherKind, ScalingSettings
from qo.config.settings import DEFAULT as DEFAULT_ORIGIN
from qo.config.settings import Settings
from qo.core.pipeline.scaling import Policy
from qo.errors import ConfigError
from qo.pipeline.registry import SPARK, configured_registry
from qo.scaler.fleet import Fleet
from qo.scaler.launchers.command_launcher import CommandLauncher
from qo.scaler.launchers.launcher import Launcher, WorkerSpec
from qo.scaler.launchers.local_launcher import LocalLauncher
from qo.scaler.scaler import Scaler
from qo.worker.shutdown import stop_on_signals

log = logging.getLogger(__name__)

LOOPBACK = ("127.0.0.1", "::1", "localhost")
TOKEN_LOOK_S = 0.5
PATIENCE_S = 5.0  # A turn that gets no answer is given up, and the next one asks again.
LINGER_S = 30.0  # After the graces of its shutdown a worker ends itself; later it hangs, and is killed.


async def run_scaler(settings: Settings, arguments: Sequence[str] = (), *, drain: bool = False) -> None:
    """Scale the runtimes of the settings until SIGTERM, SIGINT or SIGHUP.

    ``arguments``: of workers that are processes of this machine. ``drain``: end all workers before the end. Raises
    ConfigError if no runtime has scaling.
    """
    fleets = build_fleets(settings, arguments)
    stop, hurry = asyncio.Event(), asyncio.Event()
    restore = stop_on_signals(stop, again=hurry.set)
    target = settings.dispatcher
    target = replace(target, url=target.url or f"http://{target.listen}")
    try:
        target = await _wait_for_token(target, stop)
        async with UserClient.from_settings(target, patience_s=PATIENCE_S) as client:
            scaler = Scaler(client, fleets, settings.scaler, settings.scaler.id or _make_id())
            names = ", ".join(each.spec.runtime for each in fleets)
            log.info("the scaler %s has started for %s; its dispatcher is %s", scaler.name, names, target.url)
            await scaler.run(stop)
            if drain:
                await scaler.drain_all(hurry)
    finally:
        restore()
        for each in fleets:
            with suppress(Exception):
                await each.launcher.close()


async def _wait_for_token(target: DispatcherSettings, stop: asyncio.Event) -> DispatcherSettings:
    """Return the settings with a token: the one that is set, or that of a dispatcher on this machine, which writes it
    when it starts for the first time. Raises ConfigError if there is none for a dispatcher elsewhere."""
    if target.token is not None:
        return target
    if urlsplit(target.url or "").hostname not in LOOPBACK:
        raise ConfigError(
            f"there is no token for the dispatcher at {target.url}: set QO_TOKEN to one of the role scaler, see "
            "qo token create"
        )
    while (token := local_admin_token(target)) is None and not stop.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(TOKEN_LOOK_S):
                await stop.wait()
    return replace(target, token=token)


def build_fleets(settings: Settings, arguments: Sequence[str] = ()) -> list[Fleet]:
    """Return the runtimes that the settings let scale. Raises ConfigError."""
    configured_registry(settings.runtimes)  # Raises for tables that contradict each other.
    fleets = [
        _build_fleet(settings, table, table.scaling, arguments)
        for table in settings.runtimes
        if table.scaling is not None
    ]
    if not fleets:
        raise ConfigError(
            "no runtime has scaling: write a table [runtimes.NAME.scaling] with max = the most workers that may run"
        )
    return fleets


def _build_fleet(
    settings: Settings, table: RuntimeSettings, scaling: ScalingSettings, arguments: Sequence[str]
) -> Fleet:
    spec = WorkerSpec(
        table.name,
        scaling.slots or _count_slots(settings, table),
        scaling.drain_s,
        table.image,
        table.memory,
        table.cpu,
    )
    policy = Policy(
        min=scaling.min,
        max=scaling.max,
        slots=spec.slots,
        target_wait_s=scaling.target_wait_s,
        idle_s=scaling.idle_s,
    )
    ending_s = settings.worker.cancel_grace_s + settings.worker.exit_grace_s + LINGER_S
    launcher = _build_launcher(settings, spec, scaling, arguments, ending_s)
    return Fleet(
        spec,
        policy,
        launcher,
        kind=scaling.launcher,
        start_s=scaling.start_s,
        ending_s=ending_s,
        monotonic=SYSTEM.monotonic,
    )


def _count_slots(settings: Settings, table: RuntimeSettings) -> int:
    """Return how many tasks a worker of the runtime runs at a time, as the worker itself decides it."""
    is_spark = SPARK in (table.kind, table.name)
    if is_spark and settings.origin("worker.concurrency") == DEFAULT_ORIGIN:
        return settings.worker.spark_slots
    return settings.worker.concurrency


def _build_launcher(
    settings: Settings, spec: WorkerSpec, scaling: ScalingSettings, arguments: Sequence[str], ending_s: float
) -> Launcher:
    match scaling.launcher:
        case LauncherKind.LOCAL:
            return LocalLauncher(spec, Path(settings.scaler.directory), arguments)
        case LauncherKind.COMMAND:
            return CommandLauncher(
                spec, start=scaling.start, list_=scaling.list, drain=scaling.drain, kill=scaling.kill
            )
        case LauncherKind.KUBERNETES:
            from qo.scaler.launchers.kubernetes_job import JobSettings
            from qo.scaler.launchers.kubernetes_launcher import KubernetesLauncher, find_api_server

            jobs = JobSettings(
                scaling.namespace, scaling.service_account, scaling.config_map, scaling.secret, ending_s
            )
            server = find_api_server(scaling.api_url, scaling.token_file, scaling.ca_file)
            return KubernetesLauncher(spec, jobs, server)


def _make_id(ambient: Ambient = SYSTEM) -> str:
    return f"{socket.gethostname()[:60]}-{ambient.token()[:8]}"
