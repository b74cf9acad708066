"""What the listeners do with bytes."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from qo.asgi import protocol
from qo.asgi.protocol import COALESCED_BYTES_MAX, CoalescingTransport


class Sent:
    """A transport that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[bytes | str] = []

    def write(self, data: bytes) -> None:
        self.told.append(data)

    def close(self) -> None:
        self.told.append("closed")

    def is_closing(self) -> bool:
        return "closed" in self.told


def together(sent: Sent) -> Any:
    return CoalescingTransport(cast("Any", sent), asyncio.get_running_loop())


async def test_what_is_written_in_one_turn_is_sent_at_once() -> None:
    sent = Sent()
    transport = together(sent)
    transport.write(b"head")
    transport.write(b"body")
    assert sent.told == []
    await asyncio.sleep(0)
    assert sent.told == [b"headbody"]
    transport.write(b"next")
    await asyncio.sleep(0)
    assert sent.told == [b"headbody", b"next"]


async def test_much_of_it_is_not_kept_waiting() -> None:
    sent = Sent()
    transport = together(sent)
    transport.write(b"head")
    transport.write(b"x" * (COALESCED_BYTES_MAX + 1))
    assert sent.told == [b"head" + b"x" * (COALESCED_BYTES_MAX + 1)]
    await asyncio.sleep(0)
    assert len(sent.told) == 1


async def test_nothing_is_lost_when_the_connection_is_closed() -> None:
    sent = Sent()
    transport = together(sent)
    transport.write(b"last")
    transport.close()
    assert sent.told == [b"last", "closed"]
    assert transport.is_closing()
    await asyncio.sleep(0)
    assert sent.told == [b"last", "closed"]


def test_writes_are_coalesced_only_with_known_versions_of_uvicorn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert protocol.choose_protocol(True) is protocol.CoalescingProtocol
    assert protocol.choose_protocol(False) is protocol.PatientProtocol
    monkeypatch.setattr(protocol.uvicorn, "__version__", "0.99.1")
    for _ in range(2):
        assert protocol.choose_protocol(True) is protocol.PatientProtocol
    (warning,) = caplog.messages
    assert "uvicorn 0.99.1" in warning
    assert "dispatcher.coalesce_writes" in warning
