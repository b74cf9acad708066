"""Workers as processes of this machine: places, locks, drains and deaths, with a small program instead of a worker."""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qo.core.pipeline.scaling import WorkerState
from qo.scaler.launchers.launcher import LaunchedWorker, WorkerSpec
from qo.scaler.launchers.local_launcher import LocalLauncher
from support.stores.queues import until

SPEC = WorkerSpec("python", 1, 5.0)
SLEEPER = ("-c", "import time; time.sleep(60)")
STUBBORN = (
    "-c",
    "import signal, time, pathlib, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "pathlib.Path(sys.argv[1]).touch(); time.sleep(60)",
)
FAILING = ("-c", "raise SystemExit(7)")


class ProgramLauncher(LocalLauncher):
    """Runs a program of the test's."""

    program: tuple[str, ...] = SLEEPER

    def _command(self, place: int, uid: str) -> list[str]:
        return [sys.executable, *self.program]


@pytest.fixture
async def launcher(tmp_path: Path) -> AsyncIterator[ProgramLauncher]:
    launcher = ProgramLauncher(SPEC, tmp_path)
    yield launcher
    for worker in await launcher.list():
        await launcher.kill(worker)
    await until(lambda: _has_none_alive(launcher), within_s=10)


async def _has_none_alive(launcher: LocalLauncher) -> bool:
    return all(each.state is WorkerState.DEAD for each in await launcher.list())


async def find(launcher: LocalLauncher, state: WorkerState) -> LaunchedWorker:
    async def found() -> LaunchedWorker | None:
        matching = [each for each in await launcher.list() if each.state is state and each.uid]
        return matching[0] if matching else None

    return await until(found, within_s=10)


async def wait_until_empty(launcher: LocalLauncher) -> None:
    async def is_empty() -> bool:
        return not await launcher.list()

    await until(is_empty, within_s=10)


async def test_a_place_is_filled_once_also_by_two_launchers(launcher: ProgramLauncher, tmp_path: Path) -> None:
    assert await launcher.start(1)
    assert not await launcher.start(1)
    assert not await ProgramLauncher(SPEC, tmp_path).start(1)
    assert await launcher.start(2)
    await find(launcher, WorkerState.STARTING)
    assert [each.place for each in await launcher.list()] == [1, 2]


async def test_a_worker_can_be_killed_as_soon_as_it_has_been_started(launcher: ProgramLauncher) -> None:
    assert await launcher.start(1)
    (worker,) = await launcher.list()
    await launcher.kill(worker)
    assert (await find(launcher, WorkerState.DEAD)).uid == worker.uid


async def test_another_launcher_finds_the_workers_and_drains_them(
    launcher: ProgramLauncher, tmp_path: Path
) -> None:
    await launcher.start(1)
    before = await find(launcher, WorkerState.STARTING)
    another = LocalLauncher(SPEC, tmp_path)
    assert await another.list() == [before]
    await another.drain(before)
    await wait_until_empty(another)
    await wait_until_empty(launcher)


async def test_a_worker_that_died_is_listed_until_its_place_is_filled(launcher: ProgramLauncher) -> None:
    launcher.program = FAILING
    await launcher.start(1)
    dead = await find(launcher, WorkerState.DEAD)
    assert dead.detail.startswith("exit code 7; see ")
    launcher.program = SLEEPER
    assert await launcher.start(1)
    fresh = await find(launcher, WorkerState.STARTING)
    assert fresh.uid != dead.uid
    await launcher.kill(dead)  # It has gone, and its successor stays.
    await launcher.drain(dead)
    assert (await launcher.list())[0].state is WorkerState.STARTING


async def test_the_exit_code_of_a_dead_worker_is_known_as_soon_as_its_death(launcher: ProgramLauncher) -> None:
    """The lock is free a moment before the process can be waited for."""
    launcher.program = FAILING
    for _ in range(10):
        await launcher.start(1)
        assert (await find(launcher, WorkerState.DEAD)).detail.startswith("exit code 7; see ")


async def test_a_worker_that_outlives_its_launcher_is_waited_for(tmp_path: Path) -> None:
    launcher = ProgramLauncher(SPEC, tmp_path)
    await launcher.start(1)
    pid = int((tmp_path / "python-1.lock").read_text().split()[0])
    await launcher.close()
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always")
        del launcher
        gc.collect()
    assert not [each for each in noticed if issubclass(each.category, ResourceWarning)]
    os.kill(pid, signal.SIGKILL)
    await until(lambda: _is_gone(pid), within_s=10)


async def _is_gone(pid: int) -> bool:
    """Whether there is no such process, not even one that has ended and nobody has waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_a_worker_that_is_killed_from_outside_is_dead_also_to_another_launcher(
    launcher: ProgramLauncher, tmp_path: Path
) -> None:
    await launcher.start(1)
    await find(launcher, WorkerState.STARTING)
    os.kill(int((tmp_path / "python-1.lock").read_text().split()[0]), signal.SIGKILL)
    dead = await find(ProgramLauncher(SPEC, tmp_path), WorkerState.DEAD)
    assert "python-1.log" in dead.detail


async def test_a_worker_that_does_not_end_is_draining_until_it_is_killed(
    launcher: ProgramLauncher, tmp_path: Path
) -> None:
    launcher.program = (*STUBBORN, str(tmp_path / "deaf"))
    await launcher.start(1)
    worker = await find(launcher, WorkerState.STARTING)
    await until(lambda: _exists(tmp_path / "deaf"), within_s=10)
    await launcher.drain(worker)
    assert [each.state for each in await launcher.list()] == [WorkerState.DRAINING]
    assert not await launcher.start(1)
    await launcher.kill(worker)
    await wait_until_empty(launcher)


async def test_files_of_others_in_the_directory_are_no_workers(launcher: ProgramLauncher, tmp_path: Path) -> None:
    for name in ("python-x.lock", "python-0.lock", "pythonic-1.lock", "python-1.log"):
        (tmp_path / name).write_text("1 a\n")
    assert await launcher.list() == []


def test_a_worker_is_started_with_its_runtime_slots_id_and_drain_time(tmp_path: Path) -> None:
    command = LocalLauncher(SPEC, tmp_path, ["--config", "qo.toml"])._command(3, "abc")
    assert command[1:5] == ["-m", "qo", "worker", "run"]
    assert dict(zip(command[5::2], command[6::2], strict=True)) == {
        "--runtime": "python",
        "--concurrency": "1",
        "--id": "python-3-abc",
        "--workers": "1",
        "--idle-timeout": "never",
        "--shutdown-grace-s": "5",
        "--config": "qo.toml",
    }


async def _exists(path: Path) -> bool:
    return path.exists()  # noqa: ASYNC240 - a condition to wait for.
