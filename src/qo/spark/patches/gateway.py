"""PySpark's way to Spark's JVM, made shorter: what it does anew for every call is done once.

An operator of a few lines asks the JVM some hundred questions. PySpark looks up a class, and then its method, before
every static call, which is two of three questions, and tries eleven converters on every text. All that costs more than
the calls do themselves.
"""

# py4j has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

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

_PLAIN = frozenset({str, int, bool, float, type(None)})


class Client(Protocol):
    """py4j's, of which there is one for each JVM."""

    send_command: Callable[..., Any]


def shorten(client: Client) -> None:
    """For this client's JVM, and in this process. Saying so twice changes nothing.

    After ``pyspark.sql`` was imported: the converters that PySpark has put first come second.
    """
    if not isinstance(client.send_command, Remembering):
        client.send_command = Remembering(client.send_command)
    if not any(isinstance(each, Plain) for each in protocol.INPUT_CONVERTER):
        protocol.register_input_converter(Plain(), prepend=True)


class Remembering:
    """Asks like the client's own ``send_command``, from any thread; for each class and each static method once."""

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


class Plain:
    """The first of py4j's converters: arguments that none of the others has any use for stay what they are."""

    def can_convert(self, argument: object) -> bool:
        return type(argument) in _PLAIN

    def convert(self, argument: object, client: object) -> object:
        return argument
