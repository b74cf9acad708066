# ruff: noqa: F811
"""Child processes of a worker: deaths, stops, recycling, surroundings, whole programs."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import child_functions as functions
import pytest

from qo.worker.loop.cancel import Stopped, Why
from qo.worker.loop.outcome import Retried
from support.stores.queues import until
from support.worker.attempts import Attempts
from support.worker.child_pools import Pool, alive, attempts, begun, ends, failure, holds, pool, pool_of  # noqa: F401


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("SIGKILL", "the child process died of SIGKILL (out of memory?)"),
        ("SIGSEGV", "the child process died of SIGSEGV"),
        (3, "the child process exited with status 3"),
        (0, "the child process exited with status 0"),
    ],
)
async def test_a_child_that_dies_fails_its_task_and_says_how(
    pool: Pool, attempts: Attempts, how: Any, told: str
) -> None:
    assert await failure(pool, await attempts.request(functions.dies, how)) == Retried(told)
    assert await pool.call(await attempts.request(functions.double, 2)) == 4


async def test_a_crash_fails_only_its_own_task(attempts: Attempts) -> None:
    async with pool_of(4) as pool:
        inputs = [{"dies": n == 1, "s": 0.3} for n in range(4)]
        requests = [await attempts.request(functions.dies_or_sleeps, input) for input in inputs]
        given = await asyncio.gather(*map(pool.call, requests), return_exceptions=True)
        crashed = given.pop(1)
        assert given == ["done"] * 3
        assert isinstance(crashed, Exception)
        assert "SIGKILL" in str(crashed)
        assert len(pool.pids) == 3


async def test_a_child_that_dies_idle_costs_no_task_anything(pool: Pool, attempts: Attempts) -> None:
    for _ in range(5):
        os.kill(await pool.call(await attempts.request(functions.pid)), signal.SIGKILL)
        assert await pool.call(await attempts.request(functions.double, 2)) == 4, (
            "before or after its death is known"
        )


async def test_a_death_is_noticed_although_others_hold_the_line(
    pool: Pool, attempts: Attempts, tmp_path: Path
) -> None:
    try:
        outcome = await failure(
            pool, await attempts.request(functions.leaves_a_fork_behind, str(tmp_path / "pid"))
        )
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert outcome == Retried("the child process exited with status 4")


async def test_a_handler_that_closes_the_line_fails(pool: Pool, attempts: Attempts) -> None:
    outcome = await failure(pool, await attempts.request(functions.closes_everything))
    assert isinstance(outcome, Retried)
    assert await pool.call(await attempts.request(functions.double, 2)) == 4


@pytest.mark.parametrize("function", [functions.spins, functions.swallows, functions.holds_the_interpreter])
async def test_what_does_not_stop_is_killed_and_its_slot_is_free(
    attempts: Attempts, tmp_path: Path, function: Callable[..., Any]
) -> None:
    async with pool_of(1, kill_after_s=0.5) as pool:
        request = await attempts.request(function, str(tmp_path / "pid"))
        call = asyncio.create_task(pool.call(request))
        pid = await begun(tmp_path / "pid")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not alive(pid), "nothing runs when the call has ended"
        assert request.cancel.requested
        assert await pool.call(await attempts.request(functions.double, 2)) == 4


async def test_a_function_that_is_broken_off_can_clean_up(attempts: Attempts, tmp_path: Path) -> None:
    async with pool_of(1, kill_after_s=30) as pool:
        call = asyncio.create_task(pool.call(await attempts.request(functions.cleans_up, str(tmp_path / "pid"))))
        pid = await begun(tmp_path / "pid")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not alive(pid)
        assert (tmp_path / "pid.cleaned").exists()


async def test_a_function_that_watches_its_token_stops_by_itself(attempts: Attempts, tmp_path: Path) -> None:
    async with pool_of(1, kill_after_s=30) as pool:
        request = await attempts.request(functions.watches_its_token, str(tmp_path / "pid"))
        call = asyncio.create_task(pool.call(request))
        await begun(tmp_path / "pid")
        request.cancel.request(Why.LOST)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (tmp_path / "pid.why").read_text() == str(Why.LOST)


async def test_a_request_to_stop_reaches_the_child_without_breaking_it_off(
    pool: Pool, attempts: Attempts, tmp_path: Path
) -> None:
    request = await attempts.request(functions.returns_when_asked, str(tmp_path / "pid"))
    call = asyncio.create_task(pool.call(request))
    await begun(tmp_path / "pid")
    threading.Thread(target=request.cancel.request, args=(Why.SHUTDOWN,)).start()
    assert await call == str(Why.SHUTDOWN)
    facts = await pool.call(await attempts.request(functions.facts))
    assert facts["cancel_requested"] is False, "the next task in the same child was not asked to stop"


async def test_a_handler_that_checks_its_token_leaves_as_on_a_thread(
    pool: Pool, attempts: Attempts, tmp_path: Path
) -> None:
    request = await attempts.request(functions.checks_its_token, str(tmp_path / "pid"))
    call = asyncio.create_task(pool.call(request))
    await begun(tmp_path / "pid")
    request.cancel.request(Why.CANCELLED)
    with pytest.raises(Stopped, match=str(Why.CANCELLED)):
        await call


async def test_a_call_that_is_cancelled_twice_is_left_behind_until_its_child_is_dead(
    attempts: Attempts, tmp_path: Path
) -> None:
    async with pool_of(1, kill_after_s=1.0) as pool:
        request = await attempts.request(functions.swallows, str(tmp_path / "pid"))
        call = asyncio.create_task(pool.call(request))
        pid = await begun(tmp_path / "pid")
        for _ in range(2):
            call.cancel()
            await asyncio.sleep(0.05)
        assert call.cancelled()
        assert (pool.is_running(request.task.id), alive(pid)) == (True, True)
        following = asyncio.create_task(pool.call(await attempts.request(functions.double, 2)))
        await until(holds(lambda: pool.returned))
        assert (pool.is_running(request.task.id), alive(pid)) == (False, False)
        assert await following == 4


async def test_a_call_that_is_cancelled_while_it_waits_for_room_takes_none(
    attempts: Attempts, tmp_path: Path
) -> None:
    async with pool_of(1) as pool:
        go = tmp_path / "go"
        files = [str(tmp_path / "pid"), str(go)]
        first = asyncio.create_task(pool.call(await attempts.request(functions.waits_for, files)))
        await begun(tmp_path / "pid")
        second = asyncio.create_task(pool.call(await attempts.request(functions.double, 1)))
        await asyncio.sleep(0)
        second.cancel()
        go.touch()
        assert await first == "done"
        assert await pool.call(await attempts.request(functions.double, 2)) == 4


async def test_a_call_that_is_cancelled_while_its_child_starts_gives_its_room_back(attempts: Attempts) -> None:
    async with pool_of(1) as pool:
        for _ in range(3):
            call = asyncio.create_task(pool.call(await attempts.request(functions.double, 1)))
            await until(holds(lambda: pool.pids))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until(holds(lambda: not pool.pids))
        assert await pool.call(await attempts.request(functions.double, 2)) == 4


async def test_closing_ends_what_runs(attempts: Attempts, tmp_path: Path) -> None:
    async with pool_of(1) as pool:
        call = asyncio.create_task(pool.call(await attempts.request(functions.spins, str(tmp_path / "pid"))))
        pid = await begun(tmp_path / "pid")
        pool.close()
        assert not alive(pid)
        with pytest.raises(Exception, match="the worker ended"):
            await call


async def test_a_child_is_replaced_after_its_tasks(attempts: Attempts) -> None:
    async with pool_of(2, tasks_max=3) as pool:
        requests = [await attempts.request(functions.pid) for _ in range(20)]
        pids = await asyncio.gather(*map(pool.call, requests))
        assert max(pids.count(pid) for pid in pids) == 3
        assert len(set(pids)) >= 7
        await until(holds(lambda: len(pool.pids) <= 2))


async def test_a_child_that_has_grown_is_replaced_after_its_task(attempts: Attempts) -> None:
    async with pool_of(2, memory_max_mb=150) as pool:
        requests = [await attempts.request(functions.grows, 200 * 2**20 if n % 2 else 1) for n in range(20)]
        pids = await asyncio.gather(*map(pool.call, requests))
        grown = [pid for n, pid in enumerate(pids) if n % 2]
        assert len(set(grown)) == 10, "none that has grown runs another"
        await until(holds(lambda: len(pool.pids) <= 2))


async def test_a_child_inherits_nothing_but_the_standard_streams(pool: Pool, attempts: Attempts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        os.set_inheritable(server.fileno(), True)
        opened = await pool.call(await attempts.request(functions.open_files))
    sockets = [name for name in opened if name.startswith("socket:")]
    pipes = [name for name in opened if name.startswith("pipe:")]
    assert (len(sockets), len(pipes)) == (1, 1), f"its line and its lifeline only, not {opened}"


async def test_a_child_has_its_own_signal_handlers_and_no_input(pool: Pool, attempts: Attempts) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        seen = await pool.call(await attempts.request(functions.environment))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen.pop("cwd") == os.getcwd()
    expected = {
        "stdin": "",
        "term_is_ours": True,
        "usr1": True,
        "int": True,
        "threads": True,
        "asyncio": False,
        "first": True,
    }
    assert seen == expected


async def test_a_handler_may_have_processes_of_its_own(pool: Pool, attempts: Attempts) -> None:
    assert await pool.call(await attempts.request(functions.runs_others)) == [[2], "hello\n"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_signals_for_the_whole_group_leave_a_child_alone(
    pool: Pool, attempts: Attempts, tmp_path: Path, number: signal.Signals
) -> None:
    go = tmp_path / "go"
    files = [str(tmp_path / "pid"), str(go)]
    call = asyncio.create_task(pool.call(await attempts.request(functions.waits_for, files)))
    pid = await begun(tmp_path / "pid")
    for _ in range(3):
        os.kill(pid, number)
    go.touch()
    assert await call == "done"


APPS = Path(functions.__file__).parent

WORKER = """
import asyncio, os, sys
from pathlib import Path

sys.path[:0] = [{tests!r}, {apps!r}]
import child_functions
from support.worker.attempts import Attempts
from qo.worker.executors.processes import ProcessExecutor


def here(input):
    print("said in a child")
    return __name__


async def main():
    pool = ProcessExecutor(2, tasks_max=0, memory_max_mb=0, on_late_return=lambda: None)
    attempts = Attempts()
    if "here" in sys.argv:
        print(await pool.call(await attempts.request(here)))
    elif "close" not in sys.argv:
        functions = [child_functions.spins, child_functions.holds_the_interpreter]
        requests = [await attempts.request(each, f"{{sys.argv[1]}}-{{n}}") for n, each in enumerate(functions)]
        await asyncio.gather(*map(pool.call, requests))
    pool.close()

{start}
"""


# Whoever runs the tests in the background may have SIGINT ignored, and so would the program then.
GUARDED = """
if __name__ == "__main__":
    import signal
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.run(main())
"""


UNGUARDED = """
try:
    asyncio.run(main())
except Exception as error:
    if __name__ == "__main__":
        print(error)
    else:
        raise
"""


@asynccontextmanager
async def program(tmp_path: Path, start: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    script = tmp_path / "script.py"
    script.write_text(WORKER.format(tests=str(APPS.parent), apps=str(APPS), start=start))
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(script), *arguments, stdout=-1, stderr=-1, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_no_child_outlives_a_worker_that_is_killed(tmp_path: Path) -> None:
    async with program(tmp_path, GUARDED, str(tmp_path / "pid")) as worker:
        pids = [await begun(tmp_path / f"pid-{n}") for n in range(2)]
        assert all(map(alive, pids))
        worker.kill()
        for pid in pids:
            await ends(pid)


async def test_ctrl_c_ends_the_worker_and_not_the_children_first(tmp_path: Path) -> None:
    async with program(tmp_path, GUARDED, str(tmp_path / "pid")) as worker:
        pids = [await begun(tmp_path / f"pid-{n}") for n in range(2)]
        os.killpg(worker.pid, signal.SIGINT)
        _, shown = await asyncio.wait_for(worker.communicate(), 30)
        assert b"KeyboardInterrupt" in shown
        assert b"died of" not in shown
        for pid in pids:
            await ends(pid)


async def test_a_function_of_the_main_script_is_found(tmp_path: Path) -> None:
    async with program(tmp_path, GUARDED, "here") as worker:
        out, shown = await asyncio.wait_for(worker.communicate(), 30)
        assert out == b"said in a child\n__mp_main__\n", shown


async def test_a_script_that_starts_a_worker_when_imported_is_told_so(tmp_path: Path) -> None:
    async with program(tmp_path, UNGUARDED, "here") as worker:
        out, shown = await asyncio.wait_for(worker.communicate(), 30)
        assert b'under `if __name__ == "__main__":`' in out, shown
