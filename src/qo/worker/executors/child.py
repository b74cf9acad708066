"""What runs in a child process: one function after another on the main thread, and a thread that reads messages.

The child ends with its worker, whatever it is doing. It ignores Ctrl+C and a SIGTERM for the whole process group: the
worker gets them too, and decides.
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
from typing import TYPE_CHECKING, Any, cast

from qo.errors import UsageError
from qo.worker.executors.channel import Channel, LogForwarder
from qo.worker.executors.child_context import ChildContext
from qo.worker.executors.child_messages import (
    BEGIN,
    LOOK,
    Cancel,
    Exit,
    Job,
    JobResult,
    MemberFailure,
    Message,
    Start,
)
from qo.worker.loop.cancel import CancelToken, Stopped
from qo.worker.loop.suspension import boot_time

if TYPE_CHECKING:
    from qo.worker.loop.outcome import Outcome

INTERRUPT_EVERY_S = 0.05
OOM_SCORE = 300  # Of 1,000: as if the process used so much more of the memory.

loading_main = False  # Whether this process is a child that is loading the main module of its worker.


def main(channel_fd: int, lifeline_fd: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Blocked by the worker until here.
    os.set_inheritable(channel_fd, False)
    os.set_inheritable(lifeline_fd, False)
    exit_with_worker(lifeline_fd)
    raise_oom_score()
    Child(Channel(socket.socket(fileno=channel_fd))).run()


def exit_with_worker(lifeline_fd: int) -> None:
    """Have the kernel end this process when the worker's end of the pipe is closed; no other process has it.

    The thread that reads messages would notice as well, but not while a function holds the interpreter lock.
    """
    fcntl.fcntl(lifeline_fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline_fd, fcntl.F_SETFL, fcntl.fcntl(lifeline_fd, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline_fd], [], [], 0)[0]:
        os._exit(1)  # The worker has ended already.


def raise_oom_score() -> None:
    """Have the kernel kill this process rather than its worker when memory runs out."""
    score = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):
        score.write_text(str(min(1000, int(score.read_text()) + OOM_SCORE)))


class Child:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._pid = os.getpid()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._cancel = CancelToken()  # Of the current job.
        self._member_cancels: list[CancelToken] = []  # If it is a batch: those of its tasks.
        self._main_loaded = False
        self._calling = False  # The handler's function is on the stack.
        self._interrupting = False
        self._interrupted = False

    def run(self) -> None:
        """Run jobs until asked to exit."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        threading.Thread(target=self._read_messages, name="qo-messages", daemon=True).start()
        while (job := self._jobs.get()) is not None:
            output, failure = self._run_job(job)
            if os.getpid() != self._pid:
                os._exit(0)  # A fork that the handler made has returned here. It must not use this connection.
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):  # A handler may have closed or replaced them.
                    stream.flush()
            self._channel.send(JobResult(job.number, output, failure, resident_mb()))

    def _run_job(self, job: Job) -> tuple[bytes, Outcome | Stopped | None]:
        """Run a job. Return its pickled output, or what its exception means."""
        try:
            function, arguments, begin_by = self._load(job)
            try:
                self._calling = True
                if self._interrupting:  # Asked to stop before it began.
                    self._interrupted = True
                    raise SystemExit(f"interrupted: {self._cancel.why}")
                if begin_by is not None and boot_time() > begin_by:  # The process was suspended meanwhile.
                    return b"", _unstarted_outcome()
                output = function(*arguments)
                return pickle.dumps(output if job.members is None else _without_errors(output)), None
            finally:
                self._calling = False
        except BaseException as error:  # A handler that calls sys.exit() ends nothing but its attempt.
            return b"", _failure_of(error)

    def _load(self, job: Job) -> tuple[Any, tuple[Any, ...], float | None]:
        """Return the function, its arguments, and until when it may be called."""
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
        if job.members is not None:
            return function, *self._load_members(job, job.members, arguments[0])
        if job.task is None:
            return function, arguments, self._channel.call(job.number, BEGIN).facts.begin_by
        from qo.core.wire import decode_task  # Imported only for handlers that want a context.

        task = decode_task(job.task, "the task")
        call = partial(self._channel.call, job.number)
        facts = call(BEGIN).facts
        return function, (*arguments, ChildContext(task, job.worker_id, self._cancel, call, facts)), facts.begin_by

    def _load_members(
        self, job: Job, members: tuple[bytes, ...], inputs: list[Any]
    ) -> tuple[tuple[Any, ...], float | None]:
        """Return the argument of a function that takes a batch, and until when it may be called."""
        from qo.core.wire import decode_task

        begin_by, items = self._channel.call(job.number, BEGIN).facts.begin_by, list[tuple[Any, ChildContext]]()
        for member, (body, input, cancel) in enumerate(zip(members, inputs, self._member_cancels, strict=True)):
            call = partial(self._channel.call, job.number, member=member)
            task, facts = decode_task(body, "the task"), call(LOOK).facts
            items.append((input, ChildContext(task, job.worker_id, cancel, call, facts)))
        return (items,), begin_by

    def _read_messages(self) -> None:
        try:
            for message in self._channel.receive():
                self._handle(message)
        except ConnectionError:
            pass
        except BaseException:
            traceback.print_exc()  # A child that reads no messages is useless.
        finally:
            os._exit(1)  # Most likely the worker has ended.

    def _handle(self, message: Message) -> None:
        match message:
            case Start(preparation_data, log_levels):
                spawn.prepare(preparation_data)
                _forward_logs(self._channel, log_levels)
            case Job():
                self._cancel = CancelToken()
                self._member_cancels = [CancelToken() for _ in message.members or ()]
                self._jobs.put(message)
            case Cancel(why, _, int(member)):
                self._member_cancels[member].request(why)
            case Cancel(why, patience_s):
                for token in (self._cancel, *self._member_cancels):
                    token.request(why)
                if patience_s is not None:
                    threading.Thread(target=self._interrupt, args=(patience_s,), daemon=True).start()
            case Exit():
                self._jobs.put(None)
            case _:
                pass

    def _interrupt(self, patience_s: float) -> None:
        """Raise SystemExit in the function, once, so that it can clean up. The worker kills what does not end."""
        threading.Event().wait(patience_s)
        self._interrupting = True
        while self._calling and not self._interrupted:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            threading.Event().wait(INTERRUPT_EVERY_S)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        if not self._interrupting or self._interrupted or not self._calling:
            return
        if not self._channel.is_sending(threading.main_thread()):
            self._interrupted = True
            raise SystemExit(f"interrupted: {self._cancel.why}")


def _load_main(main: dict[str, Any]) -> None:
    global loading_main
    loading_main = True
    try:
        spawn.prepare(main)
    finally:
        loading_main = False


def _forward_logs(channel: Channel, levels: dict[str, int]) -> None:
    logging.getLogger().addHandler(LogForwarder(channel))
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def _unstarted_outcome() -> Outcome:
    from qo.worker.loop.outcome import unstarted_outcome  # Imported only after a failure.

    return unstarted_outcome()


def _without_errors(output: Any) -> Any:
    """Return the output of a batch as it can be sent."""
    if not isinstance(output, list | tuple):
        return output
    entries = cast("list[Any]", output)
    return [MemberFailure(_failure_of(each)) if isinstance(each, BaseException) else each for each in entries]


def _failure_of(error: BaseException) -> Outcome | Stopped:
    if isinstance(error, Stopped):
        return Stopped(str(error))  # The worker knows why it asked.
    from qo.worker.loop.outcome import outcome_of  # Imported only after a failure.

    try:
        outcome = outcome_of(error)
        pickle.dumps(outcome)
    except BaseException as new_error:  # The handler's exception is itself broken.
        return outcome_of(new_error)
    return outcome


def resident_mb() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource  # Without /proc, only the maximum so far is known.

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
