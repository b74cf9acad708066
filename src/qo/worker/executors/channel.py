"""The child's end of the connection to its worker."""

from __future__ import annotations

import itertools
import logging
import pickle
import socket
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

from qo.worker.executors.child_messages import HEADER, Answer, ContextCall, LogMessage, Message, frame


class Channel:
    """Any thread may send and call; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._incoming = connection.makefile("rb")
        self._sending = threading.Lock()
        self._sender: int | None = None
        self._numbers = itertools.count()
        self._pending: dict[int, SimpleQueue[Answer]] = {}

    def receive(self) -> Iterator[Message]:
        """Yield the worker's messages, except answers, which go to their caller. Ends when the worker does."""
        while len(header := self._incoming.read(HEADER.size)) == HEADER.size:
            message: Message = pickle.loads(self._incoming.read(HEADER.unpack(header)[0]))
            if not isinstance(message, Answer):
                yield message
            elif (answers := self._pending.pop(message.number, None)) is not None:
                answers.put(message)

    def send(self, message: Message) -> None:
        body = frame(message)
        with self._sending:
            self._sender = threading.get_ident()
            self._connection.sendall(body)
            self._sender = None

    def call(self, job: int, method: str, *arguments: Any, member: int = 0) -> Answer:
        """Have the worker call a method of the context for this job, and wait. Raise what it raised."""
        number, answers = next(self._numbers), SimpleQueue[Answer]()
        call = ContextCall(number, job, method, pickle.dumps(arguments), member)
        self._pending[number] = answers
        self.send(call)
        answer = answers.get()
        if answer.error is not None:
            raise answer.error
        return answer

    def is_sending(self, thread: threading.Thread) -> bool:
        """Whether this thread is in the middle of a message: an interruption there would garble the connection."""
        return self._sender == thread.ident


class LogForwarder(logging.Handler):
    """Sends what is logged in the child to the log handlers of the worker."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields = {
                **record.__dict__,
                "msg": self.format(record),
            }  # Includes the traceback, which cannot be pickled.
            fields |= dict.fromkeys(("args", "exc_info", "exc_text", "stack_info"))
            try:
                pickle.dumps(fields)
            except Exception:  # Some extra field that cannot be pickled.
                fields = {name: fields[name] for name in ("name", "levelno", "levelname", "msg", "created")}
            self._channel.send(LogMessage(fields))
        except Exception:
            self.handleError(record)
