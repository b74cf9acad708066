"""What runs in a child process: one function after another, on the main thread, beside a thread that listens.

The child ends with its worker, whatever it is doing. Ctrl+C and a SIGTERM for the whole process group leave it alone:
the worker got them too, and decides.
"""

from __future__ import annotations

import fcntl
import logging
import os
import pickle
import select
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from functools import partial
from multiprocessing import spawn
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any

from qo.errors import UsageError
from qo.worker.executors.child_context import ChildContext
from qo.worker.executors.line import Forward, Line
from qo.worker.executors.messages import BEGIN, Cancel, Done, Job, Leave, Message, Start
from qo.worker.loop.cancel import CancelToken, Stopped
from qo.worker.loop.suspension import boot_time

if TYPE_CHECKING:
    from qo.worker.loop.outcome import Outcome

AGAIN_S = 0.05
OOM_SCORE = 300  # Of 1,000: as if it used so much more of the memory.

loading_main = False  # Whether this is a child that is loading the main module of its worker.


def main(line_fd: int, lifeline_fd: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Blocked by the worker until here.
    os.set_inheritable(line_fd, False)
    os.set_inheritable(lifeline_fd, False)
    end_with_worker(lifeline_fd)
    offer_to_die_first()
    Child(Line(socket.socket(fileno=line_fd))).run()


def end_with_worker(lifeline_fd: int) -> None:
    """Have the kernel end this process when the other end of the pipe is closed, which only the worker holds.

    The thread that listens would notice as well, but not while a function keeps the interpreter to itself.
    """
    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, fcntl.fcntl(lifeline_fd, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline_fd], [], [], 0)[0]:
        os._exit(1)  # The worker was gone already.


def offer_to_die_first() -> None:
    """When memory runs out, the kernel should choose the process that needs so much of it, and not the worker."""
    score = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):
        score.write_text(str(min(1000, int(score.read_text()) + OOM_SCORE)))


class Child:
    def __init__(self, line: Line) -> None:
        self._line = line
        self._pid = os.getpid()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._cancel = CancelToken()  # Of the current job.
        self._main_loaded = False
        self._calling = False  # The handler's function is on the stack.
        self._breaking_off = False
        self._broken_off = False

    def run(self) -> None:
        """Do jobs until told to leave."""
        signal.signal(signal.SIGTERM, self._break_off_here)
        threading.Thread(target=self._listen, name="qo-listener", daemon=True).start()
        while (job := self._jobs.get()) is not None:
            output, failure = self._done(job)
            if os.getpid() != self._pid:
                os._exit(0)  # A fork of the handler's that came back here. It has no say on this line.
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):  # A handler may have closed or replaced them.
                    stream.flush()
            self._line.send(Done(job.number, output, failure, resident_mb()))

    # One job

    def _done(self, job: Job) -> tuple[bytes, Outcome | Stopped | None]:
        """The pickled output of a job, or what its exception means."""
        try:
            function, arguments, begin_by = self._load(job)
            try:
                self._calling = True
                if self._breaking_off:  # Asked to stop before it began.
                    self._broken_off = True
                    raise SystemExit(f"broken off: {self._cancel.why}")
                if begin_by is not None and boot_time() > begin_by:  # Stopped meanwhile, with its worker.
                    return b"", _not_begun()
                return pickle.dumps(function(*arguments)), None
            finally:
                self._calling = False
        except BaseException as error:  # A handler that calls sys.exit() ends nothing but its attempt.
            return b"", _meaning(error)

    def _load(self, job: Job) -> tuple[Any, tuple[Any, ...], float | None]:
        """The function, its arguments, and until when it may be called."""
        if job.main is not None and not self._main_loaded:
            _load_main(job.main)
            self._main_loaded = True
        try:
            function = pickle.loads(job.function)
        except (AttributeError, ModuleNotFoundError) as error:
            raise UsageError(
                f"a child process cannot find the handler {job.name} ({error}): define it at the top level of a module "
                "that can be imported"
            ) from error
        arguments = (pickle.loads(job.input),)
        if job.task is None:
            return function, arguments, self._line.ask(job.number, BEGIN).facts.begin_by
        from qo.core.wire import decode_task  # Only handlers that want a context wait for this to load.

        task = decode_task(job.task, "the task")
        ask = partial(self._line.ask, job.number)
        facts = ask(BEGIN).facts
        return function, (*arguments, ChildContext(task, job.worker_id, self._cancel, ask, facts)), facts.begin_by

    # Beside it

    def _listen(self) -> None:
        try:
            for message in self._line.receive():
                self._heed(message)
        except ConnectionError:
            pass
        except BaseException:
            traceback.print_exc()  # A child that hears nothing any more is of no use.
        finally:
            os._exit(1)  # Most likely the worker is gone.

    def _heed(self, message: Message) -> None:
        match message:
            case Start(surroundings, log_levels):
                spawn.prepare(surroundings)
                _forward_logs(self._line, log_levels)
            case Job():
                self._cancel = CancelToken()
                self._jobs.put(message)
            case Cancel(why, patience_s):
                self._cancel.request(why)
                if patience_s is not None:
                    threading.Thread(target=self._break_off, args=(patience_s,), daemon=True).start()
            case Leave():
                self._jobs.put(None)
            case _:
                pass

    def _break_off(self, patience_s: float) -> None:
        """Raise SystemExit in the function, once, so that it can clean up. The worker kills what does not end."""
        threading.Event().wait(patience_s)
        self._breaking_off = True
        while self._calling and not self._broken_off:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            threading.Event().wait(AGAIN_S)

    def _break_off_here(self, number: int, frame: FrameType | None) -> None:
        if not self._breaking_off or self._broken_off or not self._calling:
            return
        if not self._line.sent_by(threading.main_thread()):
            self._broken_off = True
            raise SystemExit(f"broken off: {self._cancel.why}")


def _load_main(main: dict[str, Any]) -> None:
    global loading_main
    loading_main = True
    try:
        spawn.prepare(main)
    finally:
        loading_main = False


def _forward_logs(line: Line, levels: dict[str, int]) -> None:
    logging.getLogger().addHandler(Forward(line))
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def _not_begun() -> Outcome:
    from qo.worker.loop.outcome import not_begun  # Only failures wait for this to load.

    return not_begun()


def _meaning(error: BaseException) -> Outcome | Stopped:
    if isinstance(error, Stopped):
        return Stopped(str(error))  # The worker knows why it asked, and what that means.
    from qo.worker.loop.outcome import outcome_of  # Only failures wait for this to load.

    try:
        meaning = outcome_of(error)
        pickle.dumps(meaning)
    except BaseException as worse:  # A word of the handler's that makes no sense.
        return outcome_of(worse)
    return meaning


def resident_mb() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource  # Where there is no /proc: the most there ever was has to do.

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
