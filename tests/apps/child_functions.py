"""Functions that tests run in child processes, which must be able to import them."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qo.errors import UsageError
from qo.worker.api.signals import Reject, Reschedule, Retry

kept: list[bytes] = []


@dataclass(frozen=True)
class Order:
    amount: int


class Unsendable(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")
        self.lock = threading.Lock()


class BareReschedule(Reschedule):
    def __init__(self) -> None:
        Exception.__init__(self, "bare")


class StopsWhenRead:
    def __getstate__(self) -> Any:
        raise RuntimeError("not to be sent")


def double(input: Any) -> Any:
    return input * 2


def order(input: Order) -> list[Any]:
    return [type(input).__name__, input.amount]


def pid(input: Any) -> int:
    time.sleep(input or 0)
    return os.getpid()


def index_batch(items: list[tuple[dict[str, int], Any]]) -> list[Any]:
    def index(n: int, ctx: Any) -> Any:
        ctx.progress(n)
        errors = {1: Unsendable("odd", "1"), 3: Reject("never")}
        return errors.get(n) or [len(items), ctx.task_id]

    return [index(input["n"], ctx) for input, ctx in items]


def await_cancel(items: list[tuple[str, Any]]) -> list[Any]:
    Path(items[0][0]).touch()
    while not any(ctx.cancel.requested for _, ctx in items):
        time.sleep(0.01)
    return [[ctx.task_id for _, ctx in items if ctx.cancel.requested]] * len(items)


def hang_once(items: list[tuple[str, Any]]) -> None:
    marker = Path(items[0][0])
    if not marker.exists():
        marker.touch()
        time.sleep(600)


def die_in_company(items: list[tuple[int, Any]]) -> None:
    if len(items) > 1:
        os._exit(7)


def facts(input: Any, ctx: Any) -> dict[str, Any]:
    return {
        "task_id": ctx.task_id,
        "type": ctx.task.task_type,
        "attempt": ctx.attempt,
        "worker_id": ctx.worker_id,
        "remaining_s": None if ctx.deadline is None else ctx.deadline - time.monotonic(),
        "cancel_requested": ctx.cancel_requested,
        "draining": ctx.draining,
    }


def raises(input: str) -> None:
    errors: dict[str, Any] = {
        "value": lambda: ValueError("no such thing"),
        "unsendable": lambda: Unsendable("this", "that"),
        "exit": lambda: SystemExit(3),
        "stop": lambda: StopIteration("empty"),
        "surrogate": lambda: OSError("caf\udce9"),
        "interrupt": lambda: KeyboardInterrupt(),
        "reject": lambda: Reject("never"),
        "retry": lambda: Retry("soon", delay_s=7),
        "reschedule": lambda: Reschedule(9),
        "bare": lambda: BareReschedule(),
    }
    raise errors[input]()


def unsendable(input: Any) -> Any:
    return StopsWhenRead() if input is None else lambda: None


def dies(input: Any) -> None:
    if isinstance(input, str):
        os.kill(os.getpid(), signal.Signals[input])
        time.sleep(60)
    os._exit(input)


def dies_or_sleeps(input: dict[str, Any]) -> str:
    if input["dies"]:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(input["s"])
    return "done"


def leaves_a_fork_behind(input: str) -> None:
    """A process that holds all that this one has open outlives it."""
    fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    fork.start()
    Path(input).write_text(str(fork.pid))
    os._exit(4)


def closes_everything(input: Any) -> None:
    os.closerange(3, 200)


def spins(input: str) -> None:
    Path(input).write_text(str(os.getpid()))
    while True:
        pass


def swallows(input: str) -> None:
    Path(input).write_text(str(os.getpid()))
    while True:
        try:
            time.sleep(60)
        except BaseException:
            continue


def holds_the_interpreter(input: str) -> None:
    """In C code, where no other thread and no signal handler gets a turn."""
    Path(input).write_text(str(os.getpid()))
    re.match(r"(a+)+$", "a" * 60 + "b")


def cleans_up(input: str) -> None:
    Path(input).write_text(str(os.getpid()))
    try:
        time.sleep(60)
    finally:
        Path(input + ".cleaned").touch()


def watches_its_token(input: str, ctx: Any) -> None:
    Path(input).write_text(str(os.getpid()))
    ctx.cancel.wait(60)
    Path(input + ".why").write_text(str(ctx.cancel.why))


def returns_when_asked(input: str, ctx: Any) -> str:
    Path(input).write_text(str(os.getpid()))
    ctx.cancel.wait(60)
    return str(ctx.cancel.why)


def checks_its_token(input: str, ctx: Any) -> None:
    Path(input).write_text(str(os.getpid()))
    while True:
        ctx.cancel.check()
        time.sleep(0.01)


def waits_for(input: list[str]) -> str:
    Path(input[0]).write_text(str(os.getpid()))
    while not Path(input[1]).exists():
        time.sleep(0.01)
    return "done"


def grows(input: int) -> int:
    kept.append(b"x" * input)
    return os.getpid()


def submits(input: Any, ctx: Any) -> dict[str, Any]:
    child = ctx.submit("double", {"from": ctx.task_id})
    try:
        ctx.submit("", None)
        refused = None
    except UsageError as error:
        refused = str(error)
    return {"id": child.id, "type": child.task_type, "refused": refused}


def submits_a_flow(input: Any, ctx: Any) -> list[str]:
    from qo import NewTask, chain

    plan = chain(NewTask("double", 1), NewTask("double", 2))
    return [task.id for _ in range(2) for task in ctx.submit_flow(plan, key=ctx.task_id)]


def submits_then_dies(input: str, ctx: Any) -> None:
    Path(input).write_text(ctx.submit("double", 1).id)
    os.kill(os.getpid(), signal.SIGKILL)


def asks_from_threads(input: int, ctx: Any) -> list[str]:
    ids: list[str] = []
    threads = [threading.Thread(target=lambda: ids.append(ctx.submit("double", 1).id)) for _ in range(input)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ids


def tells(input: Any, ctx: Any) -> str:
    ctx.progress({"percent": 50})
    ctx.log.info("half of %s", "it", extra={"lock": threading.Lock()})
    logging.getLogger("somebody.else").warning("careful")
    try:
        raise ValueError("seen")
    except ValueError:
        logging.getLogger("somebody.else").exception("caught")
    try:
        ctx.progress({1, 2})
    except UsageError as error:
        return str(error)
    return ""


def extends(input: float, ctx: Any) -> list[float]:
    before = ctx.deadline - time.monotonic()
    ctx.extend(input)
    after = ctx.deadline - time.monotonic()
    ctx.renew(2 * input)
    return [before, after, ctx.deadline - time.monotonic()]


def drains(input: str, ctx: Any) -> bool:
    Path(input).touch()
    while not ctx.draining:
        time.sleep(0.01)
    return True


def runs_others(input: Any) -> list[Any]:
    """A handler may have processes of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pooled = pool.map(double, [1])
    shown = subprocess.run([sys.executable, "-c", "print('hello')"], capture_output=True, text=True, check=True)
    return [pooled, shown.stdout]


def open_files(input: Any) -> list[str]:
    """What is open beyond the standard streams."""
    found: list[str] = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if int(number) > 2:
            found.append(target)
    return found


def environment(input: Any) -> dict[str, Any]:
    return {
        "stdin": sys.stdin.read(),
        "term_is_ours": "on_sigterm" in str(signal.getsignal(signal.SIGTERM)),
        "usr1": signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL,
        "int": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        "cwd": os.getcwd(),
        "threads": threading.current_thread() is threading.main_thread(),
        "asyncio": "asyncio" in sys.modules,
        "first": int(Path("/proc/self/oom_score_adj").read_text())
        > int(Path("/proc/1/oom_score_adj").read_text()),
    }


def forks(input: Any) -> str:
    """Both processes return."""
    fork = os.fork()
    if fork == 0:
        return "the fork's"
    for _ in range(500):
        if os.waitpid(fork, os.WNOHANG)[0]:
            return "its own"
        time.sleep(0.01)
    os.kill(fork, signal.SIGKILL)
    os.waitpid(fork, 0)
    return "the fork stayed"


def speaks_later(input: list[str], ctx: Any) -> str:
    """A thread outlives it, and uses its context once the first file is there; the second says how that went."""

    def speak() -> None:
        while not Path(input[0]).exists():
            time.sleep(0.01)
        try:
            ctx.renew(progress="late")
            answer = "heard"
        except Exception as error:
            answer = type(error).__name__
        unread = Path(f"{input[1]}.new")
        unread.write_text(answer)
        unread.rename(input[1])

    threading.Thread(target=speak, daemon=True).start()
    return "done"
