"""What attempts print and log goes to their own logs, several at a time in one process, and on to the worker's."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout

import pytest

from qo.agent.logs.attempt_log import AttemptLog
from qo.agent.logs.capture import capturing, enter_log, outside_logs
from qo.agent.operators import on_thread
from qo.core import run_log
from qo.core.run_log import Limits

LIMITS = Limits(1024 * 1024)


def new_log(limits: Limits = LIMITS) -> AttemptLog:
    return AttemptLog("file:/nowhere/_logs/x/", limits, lambda log: None, 0.0)


def lines_of(log: AttemptLog) -> list[run_log.Line]:
    log.close()
    log.encode_pending()
    return [line for chunk in log.chunks.unsaved() for line in run_log.decode(bytes(chunk.body))]


def texts_of(log: AttemptLog) -> list[str]:
    return [line.text for line in lines_of(log)]


@contextmanager
def captured() -> Iterator[io.StringIO]:
    """Attempts are captured; the value is what goes to the worker's own standard output."""
    output = io.StringIO()
    with redirect_stdout(output), capturing():
        yield output


async def run_in(log: AttemptLog, call: Callable[[], object]) -> None:
    async def work() -> None:
        enter_log(log)
        await on_thread(call)

    await asyncio.create_task(work())


async def test_attempts_at_a_time_are_told_apart() -> None:
    with captured() as worker_output:
        barrier = threading.Barrier(3)

        def operator(name: str) -> None:
            for number in range(50):
                barrier.wait(10)
                print(name, number)

        logs = {name: new_log() for name in "abc"}
        await asyncio.gather(*(run_in(log, lambda name=name: operator(name)) for name, log in logs.items()))
        for name, log in logs.items():
            assert texts_of(log) == [f"{name} {number}" for number in range(50)]
        assert sorted(worker_output.getvalue().splitlines()) == sorted(
            f"{n} {i}" for n in "abc" for i in range(50)
        )


async def test_coroutines_of_one_event_loop_are_told_apart() -> None:
    with captured():

        async def operator(log: AttemptLog, name: str) -> None:
            enter_log(log)
            for number in range(5):
                print(name, end="")
                await asyncio.sleep(0)
                print(number)
            await asyncio.gather(*(asyncio.to_thread(print, name, "thread") for _ in range(3)))

        logs = {name: new_log() for name in "ab"}
        await asyncio.gather(*(asyncio.create_task(operator(log, name)) for name, log in logs.items()))
        for name, log in logs.items():
            assert texts_of(log) == [*(f"{name}{number}" for number in range(5)), *[f"{name} thread"] * 3]


async def test_threads_and_pools_of_an_attempt_print_to_its_log() -> None:
    with captured() as worker_output:
        shared = ThreadPoolExecutor(1)
        shared.submit(int).result()  # Its thread belongs to nobody.

        def operator(name: str) -> None:
            thread = threading.Thread(target=lambda: print(name, "thread"))
            thread.start()
            thread.join()
            with ThreadPoolExecutor(2) as own:
                own.submit(print, name, "pool").result()
            shared.submit(print, name, "shared").result()

        for name in "ab":
            log = new_log()
            await run_in(log, lambda name=name: operator(name))
            assert texts_of(log) == [f"{name} thread", f"{name} pool", f"{name} shared"]
        shared.submit(print, "nobody").result()
        assert worker_output.getvalue().endswith("nobody\n")
        shared.shutdown()


async def test_what_is_logged_has_its_level_and_still_reaches_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    with captured():

        def operator() -> None:
            logging.getLogger("shop.clean").warning("%d rows\nwithout a date", 3)
            try:
                raise ValueError("x")
            except ValueError:
                logging.getLogger("shop.clean").exception("failed")

        log = new_log()
        with caplog.at_level(logging.INFO):
            await run_in(log, operator)
            logging.getLogger("shop").info("of nobody")
        lines = lines_of(log)
        assert [(each.stream, each.level, each.logger) for each in lines[:2]] == [
            ("log", "warning", "shop.clean")
        ] * 2
        assert [each.text for each in lines[:3]] == ["3 rows", "without a date", "failed"]
        assert lines[-1].text == "ValueError: x"
        assert [record.getMessage() for record in caplog.records] == [
            "3 rows\nwithout a date",
            "failed",
            "of nobody",
        ]


async def test_the_output_of_child_processes_is_captured() -> None:
    with captured():
        script = "import sys; print('out'); print('err', file=sys.stderr)"

        def operator() -> None:
            subprocess.run([sys.executable, "-c", script], check=True)
            assert subprocess.run(["echo", "own"], capture_output=True, text=True, check=True).stdout == "own\n"
            subprocess.run(["sh", "-c", "echo merged >&2"], stderr=subprocess.STDOUT, check=True)
            print("after")
            with outside_logs():
                subprocess.run(["true"], check=True)

        log = new_log()
        await run_in(log, operator)
        found = [(each.stream, each.text) for each in lines_of(log)]
        assert sorted(found[:2]) == [("stderr", "err"), ("stdout", "out")]
        assert found[2:] == [("stdout", "merged"), ("stdout", "after")]

        async def coroutine(log: AttemptLog) -> None:
            enter_log(log)
            process = await asyncio.create_subprocess_exec("echo", "async")
            await process.wait()

        log = new_log()
        await asyncio.create_task(coroutine(log))
        assert texts_of(log) == ["async"]


async def test_a_child_that_outlives_its_attempt_delays_it_little() -> None:
    with captured():
        children: list[subprocess.Popen[bytes]] = []
        log = new_log()
        await run_in(log, lambda: children.append(subprocess.Popen(["sleep", "60"])))
        began = time.monotonic()
        log.close()
        assert time.monotonic() - began < 5
        children[0].kill()
        children[0].wait()


async def test_a_command_that_does_not_exist_leaves_no_pipe() -> None:
    with captured():

        def operator() -> None:
            with pytest.raises(FileNotFoundError):
                subprocess.run(["no-such-command-of-anybody"], check=True)

        before = len(os.listdir("/proc/self/fd"))
        await run_in(new_log(), operator)
        assert len(os.listdir("/proc/self/fd")) <= before


async def test_a_forked_child_prints_without_a_log() -> None:
    with captured():
        log = new_log()

        def operator() -> None:
            pid = os.fork()
            if pid == 0:
                print("in the child")
                os._exit(0)
            os.waitpid(pid, 0)

        await run_in(log, operator)
        assert texts_of(log) == []


async def test_bytes_and_lists_of_lines_are_captured(capfd: pytest.CaptureFixture[str]) -> None:
    def operator() -> None:
        sys.stderr.writelines(["a\n", "b\n"])
        sys.stderr.buffer.write(b"c\xff\n")
        sys.stderr.flush()

    log = new_log()
    with capturing():
        await run_in(log, operator)
    assert texts_of(log) == ["a", "b", "c\ufffd"]


def test_everything_is_as_before_when_nobody_captures() -> None:
    before = (sys.stdout, sys.stderr, threading.Thread.start, ThreadPoolExecutor.submit, subprocess.Popen.__init__)
    handlers = list(logging.getLogger().handlers)
    with capturing():
        with capturing():
            assert sys.stdout is not before[0]
        assert sys.stdout is not before[0]
        assert sys.stdout.isatty() == before[0].isatty()
    after = (sys.stdout, sys.stderr, threading.Thread.start, ThreadPoolExecutor.submit, subprocess.Popen.__init__)
    assert after == before
    assert logging.getLogger().handlers == handlers


async def test_secrets_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with captured():
        key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\nAAAAAAAAAAAAbbbb\n-----END KEY-----"
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
        monkeypatch.setenv("SHOP_DB_PASSWORD", "correct-horse")
        monkeypatch.setenv("SHOP_TOKEN_FILE", "/run/secrets/token")
        monkeypatch.setenv("SHOP_PRIVATE_KEY", key)

        def operator() -> None:
            print("wJalr", end="")
            print("XUtnFEMI postgresql://me:hunter2@db/shop correct-horse", "/run/secrets/token")
            print(key)
            print("x" * (run_log.LINE_CHARS_MAX - 5) + "correct-horse")

        log = new_log()
        await run_in(log, operator)
        texts = texts_of(log)
        assert texts[0] == "(hidden) postgresql://me:(hidden)@db/shop (hidden) /run/secrets/token"
        assert texts[1:5] == ["(hidden)"] * 4
        assert "corr" not in texts[5]


async def test_nothing_is_taken_after_the_end() -> None:
    with captured() as worker_output:
        log, go, done = new_log(), threading.Event(), threading.Event()

        def late() -> None:
            go.wait(10)
            print("too late")
            done.set()

        await run_in(log, lambda: threading.Thread(target=late, daemon=True).start())
        log.close()
        go.set()
        assert await asyncio.to_thread(done.wait, 10)
        assert not log.has_lines
        assert "too late" in worker_output.getvalue()
