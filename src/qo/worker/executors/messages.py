"""What a worker and its child processes say to each other, and how it is cut into frames.

    worker to child   Start, then Job, Answer and Cancel, over and over, and at last Leave
    child to worker   Ask, Logged, and one Done for each Job

A frame is a length and a pickle. Both ends are one program and trust each other. Values of handlers travel as bytes
within a message, so that one which cannot be read spoils its own task and not the conversation.
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
BEGIN = "begin"  # What a child asks before it calls a function.
LOOK = "look"  # What it asks to learn the facts.


@dataclass(frozen=True, slots=True)
class Start:
    """The first message."""

    surroundings: dict[str, Any]  # As multiprocessing describes them: import path, arguments, working directory.
    log_levels: dict[str, int]  # By logger: what nobody would see need not be sent.


@dataclass(frozen=True, slots=True)
class Job:
    number: (
        int  # What is said of it bears this: a thread or fork that outlived its job must not speak for the next.
    )
    name: str  # Of the function, for people.
    function: bytes  # Pickled, which for a function means: where to find it.
    input: bytes  # Pickled.
    main: dict[str, Any] | None  # How to load the worker's main module; None: the function is not from there.
    task: bytes | None  # As JSON; None: the function wants no context.
    worker_id: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What a context shows and only the worker knows."""

    remaining_s: float | None = None  # None: as long as it takes.
    cancel_requested: bool = False
    draining: bool = False
    begin_by: float | None = None  # By ``boot_time``: later, its lease may be somebody else's.


@dataclass(frozen=True, slots=True)
class Cancel:
    """Set the token; if ``patience_s`` is given, break the function off so much later."""

    why: Why
    patience_s: float | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """End, now that nothing runs."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Call a verb of the context, or be told that the time of the attempt begins: the function is loaded."""

    number: int
    job: int
    verb: str
    arguments: bytes  # A pickled tuple.


@dataclass(frozen=True, slots=True)
class Answer:
    number: int
    value: Any
    error: Exception | None
    facts: Facts


@dataclass(frozen=True, slots=True)
class Logged:
    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Done:
    job: int
    output: bytes  # Pickled; without meaning if there is a failure.
    failure: Outcome | Stopped | None
    memory_mb: float


Message = Start | Job | Cancel | Leave | Ask | Answer | Logged | Done


def frame(message: Message) -> bytes:
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(body)) + body
