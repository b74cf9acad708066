"""What the classes of Spark's JVM are called and can do, asked once.

PySpark looks up a class, and then its method, before every static call: two questions to the JVM, and as long as the
call itself. Of what a small task asks, that is a third; and the answers stay the same for as long as the JVM is there.
"""

# py4j has no types.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from py4j import protocol

_NAME = protocol.REFLECTION_COMMAND_NAME + protocol.REFL_GET_UNKNOWN_SUB_COMMAND_NAME
_MEMBER = protocol.REFLECTION_COMMAND_NAME + protocol.REFL_GET_MEMBER_SUB_COMMAND_NAME
_LOOKS_UP = (_NAME, _MEMBER)
_IMPORTS = protocol.JVMVIEW_COMMAND_NAME

_METHOD = protocol.SUCCESS + protocol.METHOD_TYPE
_CLASS = protocol.SUCCESS_CLASS


class Client(Protocol):
    """py4j's, of which there is one for each JVM."""

    send_command: Callable[..., Any]


class Remembering:
    """Asks like the client's own ``send_command``, from any thread."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask
        self._known: dict[str, str] = {}

    def __call__(self, command: str, *args: Any, **kwargs: Any) -> Any:
        if not command.startswith(_LOOKS_UP):
            answer = self._ask(command, *args, **kwargs)
            if command.startswith(_IMPORTS):
                self._known = {}  # A short name may mean another class now, also to who has asked meanwhile.
            return answer
        known = self._known
        if (found := known.get(command)) is not None:
            return found
        answer = self._ask(command, *args, **kwargs)
        # Not packages, which is what all names are that mean nothing yet; nor fields, which change, and whose objects
        # are let go by who was given them.
        if answer == _METHOD or answer.startswith(_CLASS):
            known[command] = answer
        return answer


def remember(client: Client) -> None:
    """Ask this client's JVM for each class and each static method once. Saying so twice changes nothing."""
    if not isinstance(client.send_command, Remembering):
        client.send_command = Remembering(client.send_command)
