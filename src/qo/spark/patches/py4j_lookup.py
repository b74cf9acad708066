"""Fewer and cheaper calls from PySpark to Spark's JVM, through py4j.

An operator of a few lines makes some hundred calls to the JVM. Before every static call PySpark looks up the class and
then the method, which is two of three calls, and py4j tries ten converters on every string. Both cost more than the
calls themselves.
"""

# py4j has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from py4j import protocol

_CLASS_LOOKUP = protocol.REFLECTION_COMMAND_NAME + protocol.REFL_GET_UNKNOWN_SUB_COMMAND_NAME
_MEMBER_LOOKUP = protocol.REFLECTION_COMMAND_NAME + protocol.REFL_GET_MEMBER_SUB_COMMAND_NAME
_LOOKUPS = (_CLASS_LOOKUP, _MEMBER_LOOKUP)
_IMPORT = protocol.JVMVIEW_COMMAND_NAME

_METHOD = protocol.SUCCESS + protocol.METHOD_TYPE
_CLASS = protocol.SUCCESS_CLASS

_UNCONVERTED = frozenset({str, int, bool, float, type(None)})


class Client(Protocol):
    """py4j's client, of which there is one for each JVM."""

    send_command: Callable[..., Any]


def install_lookup_cache(client: Client) -> None:
    """Cache the answers to look-ups of classes and static methods. Calling it twice changes nothing."""
    if not isinstance(client.send_command, CachedLookups):
        client.send_command = CachedLookups(client.send_command)


def install_scalar_converter() -> None:
    """Put ``ScalarConverter`` before all other converters of the process. Calling it twice changes nothing.

    Call it after ``pyspark.sql`` was imported, which puts converters of its own first.
    """
    if not any(isinstance(each, ScalarConverter) for each in protocol.INPUT_CONVERTER):
        protocol.register_input_converter(ScalarConverter(), prepend=True)


class CachedLookups:
    """The client's ``send_command``, which looks up each class and each static method once. Safe in any thread."""

    def __init__(self, send_command: Callable[..., Any]) -> None:
        self._send_command = send_command
        self._cache: dict[str, str] = {}

    def __call__(self, command: str, *args: Any, **kwargs: Any) -> Any:
        if not command.startswith(_LOOKUPS):
            answer = self._send_command(command, *args, **kwargs)
            if command.startswith(_IMPORT):
                # A short name may mean another class now. A new dict: a look-up that began before the import must not
                # put its answer where later ones would find it.
                self._cache = {}
            return answer
        cache = self._cache
        if (cached := cache.get(command)) is not None:
            return cached
        answer = self._send_command(command, *args, **kwargs)
        # Only classes and methods. A package is the answer for any name that means nothing yet, a field may change,
        # and its object is released by the caller who got it.
        if answer == _METHOD or answer.startswith(_CLASS):
            cache[command] = answer
        return answer


class ScalarConverter:
    """A converter of py4j that leaves scalars as they are, which every other converter would do as well."""

    def can_convert(self, argument: object) -> bool:
        return type(argument) in _UNCONVERTED

    def convert(self, argument: object, client: object) -> object:
        return argument
