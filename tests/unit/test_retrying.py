"""Repeatable operations outlive short outages; conditional writes are sent once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from qo.ambient import Ambient
from qo.errors import PreconditionFailed, Unavailable
from qo.store.port import Deletion, ObjectStore
from qo.store.retrying import Retrying

pytestmark = pytest.mark.fast


class Outage:
    """A store that answers every call with one error a number of times, then with the call's own name."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.left, self.calls = error, times, 0

    def __getattr__(self, name: str) -> Callable[..., Awaitable[str]]:
        async def call(*args: Any, **kwargs: Any) -> str:
            self.calls += 1
            if self.left:
                self.left -= 1
                raise self.error
            return name

        return call


REPEATABLE = {
    "get": lambda store: store.get("key", version="v"),
    "get_if_changed": lambda store: store.get_if_changed("key", "etag"),
    "put": lambda store: store.put("key", b"body"),
    "delete": lambda store: store.delete("key"),
    "delete_many": lambda store: store.delete_many([Deletion("key")]),
    "list": lambda store: store.list("prefix", start_after="a", limit=7),
    "versions": lambda store: store.versions("key"),
    "versioned": lambda store: store.versioned(),
    "presign": lambda store: store.presign("key", expires_s=60),
    "now": lambda store: store.now(),
}
CONDITIONAL = [
    lambda store: store.put("key", b"body", if_match="etag"),
    lambda store: store.put("key", b"body", if_absent=True),
    lambda store: store.delete("key", if_match="etag"),
]


@pytest.fixture(autouse=True)
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long was rested; no test waits for it."""
    rested: list[float] = []

    async def sleep(seconds: float) -> None:
        rested.append(seconds)

    monkeypatch.setattr("qo.store.retrying.asyncio.sleep", sleep)
    return rested


@pytest.mark.parametrize("name", REPEATABLE)
async def test_a_repeatable_operation_outlives_a_short_outage(name: str) -> None:
    outage = Outage(Unavailable("down"), times=4)
    answer = await REPEATABLE[name](Retrying(outage))
    assert outage.calls == 5
    assert answer == (None if name == "delete_many" else name)


@pytest.mark.parametrize("name", REPEATABLE)
async def test_a_lasting_outage_is_reported(name: str) -> None:
    outage = Outage(Unavailable("down"), times=99)
    with pytest.raises(Unavailable, match="down"):
        await REPEATABLE[name](Retrying(outage, attempts=3))
    assert outage.calls == 3


@pytest.mark.parametrize("write", CONDITIONAL)
async def test_a_conditional_write_is_never_sent_again(write: Callable[[ObjectStore], Awaitable[Any]]) -> None:
    outage = Outage(Unavailable("down"), times=1)
    with pytest.raises(Unavailable):
        await write(Retrying(outage))
    assert outage.calls == 1


@pytest.mark.parametrize("name", REPEATABLE)
async def test_an_answer_is_an_answer_even_if_it_is_a_refusal(name: str) -> None:
    outage = Outage(PreconditionFailed("moved"), times=1)
    with pytest.raises(PreconditionFailed):
        await REPEATABLE[name](Retrying(outage))
    assert outage.calls == 1


async def test_rests_grow_to_a_limit_and_no_two_clients_rest_alike(rests: list[float]) -> None:
    await Retrying(Outage(Unavailable("down"), times=9), ambient=Ambient.seeded(1), attempts=10).get("key")
    first, rests[:] = list(rests), []
    await Retrying(Outage(Unavailable("down"), times=9), ambient=Ambient.seeded(2), attempts=10).get("key")
    assert first != rests
    for nominal, rest in zip([0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2, 2, 2], rests, strict=True):
        assert 0.5 * nominal <= rest < 1.5 * nominal
