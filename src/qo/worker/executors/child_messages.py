"""The messages between a worker and its child processes, and their encoding as frames.

    worker to child   Start, then Job, Answer and Cancel, over and over, and at last Exit
    child to worker   ContextCall, LogMessage, and one JobResult for each Job

A frame is a length and a pickle. Both ends are one program and trust each other. Values of handlers travel as bytes
within a message, so that a value which cannot be read fails its own task and not the connection.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qo.worker.loop.cancel import Stopped, Why

if TYPE_CHECKING:
    from qo.worker.loop.outcome import Outcome

HEADER = struct.Struct("!Q")
BEGIN = "begin"  # Called by a child just before it calls a function.
LOOK = "look"  # Called by a child to learn the facts.


@dataclass(frozen=True, slots=True)
class Start:
    """The first message."""

    preparation_data: dict[str, Any]  # Of multiprocessing: import path, arguments, directory.
    log_levels: dict[str, int]  # By logger: what the worker would not log need not be sent.


@dataclass(frozen=True, slots=True)
class Job:
    # Messages about a job carry its number: a thread or fork that outlived its job must not speak for the next one.
    number: int
    name: str  # Of the function, for messages.
    function: bytes  # Pickled: its module and name.
    input: bytes  # Pickled.
    main: dict[str, Any] | None  # How to load the worker's main module; None: the function is in another one.
    task: bytes | None  # As JSON; None: the function wants no context.
    worker_id: str
    members: tuple[bytes, ...] | None = (
        None  # The tasks of a batch, whose input is the list of theirs; None: no batch.
    )


@dataclass(frozen=True, slots=True)
class Facts:
    """What a context shows and only the worker knows."""

    remaining_s: float | None = None  # None: no limit.
    cancel_requested: bool = False
    draining: bool = False
    begin_by: float | None = None  # By ``boot_time``: later, another worker may have the lease.


@dataclass(frozen=True, slots=True)
class Cancel:
    """Set the cancel token; if ``patience_s`` is given, interrupt the function so much later."""

    why: Why
    patience_s: float | None = None
    member: int | None = None  # Only that of this task of a batch.


@dataclass(frozen=True, slots=True)
class Exit:
    """End the child, now that nothing runs in it."""


@dataclass(frozen=True, slots=True)
class ContextCall:
    """Call a method of the context; or BEGIN: the function is loaded, and the time of the attempt begins."""

    number: int
    job: int
    method: str
    arguments: bytes  # A pickled tuple.
    member: int = 0  # Whose context it is, in a batch.


@dataclass(frozen=True, slots=True)
class Answer:
    number: int
    value: Any
    error: Exception | None
    facts: Facts


@dataclass(frozen=True, slots=True)
class LogMessage:
    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MemberFailure:
    """Stands for an exception in the output of a batch: exceptions may not be picklable."""

    outcome: Outcome | Stopped


@dataclass(frozen=True, slots=True)
class JobResult:
    job: int
    output: bytes  # Pickled; meaningless if there is a failure.
    failure: Outcome | Stopped | None
    memory_mb: float


Message = Start | Job | Cancel | Exit | ContextCall | Answer | LogMessage | JobResult


def frame(message: Message) -> bytes:
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body)) + body
