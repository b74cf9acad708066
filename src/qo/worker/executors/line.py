"""The child's end of the line to its worker, and the records that are logged through it."""

from __future__ import annotations

import itertools
import logging
import pickle
import socket
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

from qo.worker.executors.messages import HEADER, Answer, Ask, Logged, Message, frame


class Line:
    """Any thread may send and ask; one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._received = end.makefile("rb")
        self._sending = threading.Lock()
        self._sender: int | None = None
        self._numbers = itertools.count()
        self._asked: dict[int, SimpleQueue[Answer]] = {}

    def receive(self) -> Iterator[Message]:
        """What the worker says, answers aside: those reach who asked. Ends when the worker does."""
        while len(header := self._received.read(HEADER.size)) == HEADER.size:
            message: Message = pickle.loads(self._received.read(HEADER.unpack(header)[0]))
            if not isinstance(message, Answer):
                yield message
            elif (asked := self._asked.pop(message.number, None)) is not None:
                asked.put(message)

    def send(self, message: Message) -> None:
        body = frame(message)
        with self._sending:
            self._sender = threading.get_ident()
            self._end.sendall(body)
            self._sender = None

    def ask(self, job: int, verb: str, *arguments: Any) -> Answer:
        """Have the worker call a verb for this job, and wait. Raises what it raised."""
        number, answers = next(self._numbers), SimpleQueue[Answer]()
        asking = Ask(number, job, verb, pickle.dumps(arguments))
        self._asked[number] = answers
        self.send(asking)
        answer = answers.get()
        if answer.error is not None:
            raise answer.error
        return answer

    def sent_by(self, thread: threading.Thread) -> bool:
        """Whether this thread is in the middle of a message: to break it off there would garble the line."""
        return self._sender == thread.ident


class Forward(logging.Handler):
    """Sends what is logged in the child to the handlers of the worker."""

    def __init__(self, line: Line) -> None:
        super().__init__()
        self._line = line

    def emit(self, record: logging.LogRecord) -> None:
        try:
            told = {**record.__dict__, "msg": self.format(record)}  # With the traceback, which cannot be sent.
            told |= dict.fromkeys(("args", "exc_info", "exc_text", "stack_info"))
            try:
                pickle.dumps(told)
            except Exception:  # Something extra that cannot be sent.
                told = {name: told[name] for name in ("name", "levelno", "levelname", "msg", "created")}
            self._line.send(Logged(told))
        except Exception:
            self.handleError(record)
