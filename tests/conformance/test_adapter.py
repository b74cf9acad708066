"""A store adapter is one module, one registration and one test, as shown here by a store in a dictionary."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from qo.ambient import Ambient
from qo.config import location
from qo.config.settings import Settings
from qo.errors import ConfigError, Unproven
from qo.queue.connecting import connect
from qo.store import opening
from qo.store.memory import MemoryStore
from qo.store.opening import open_store
from qo.store.port import ObjectStore
from qo.store.retrying import Retrying
from qo.testing.conformance import StoreConformance

pytestmark = pytest.mark.fast


@dataclass(frozen=True, slots=True)
class Shelf(location.Location):
    name: str

    @property
    def text(self) -> str:
        return f"shelf:{self.name}"

    def child(self, *names: str) -> str | None:
        return f"{self.text}.{'.'.join(names)}"


class ShelfStore(MemoryStore):
    pass


SHELVES: dict[str, ShelfStore] = {}


def parse_shelf(text: str) -> Shelf:
    if not text:
        raise ValueError("shelf: needs a name, for example shelf:top")
    return Shelf(text)


async def open_shelf(place: Shelf, settings: Settings, ambient: Ambient) -> ObjectStore:
    return SHELVES.setdefault(place.name, ShelfStore())


@pytest.fixture(autouse=True)
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(location, "_PARSERS", dict(location._PARSERS))
    monkeypatch.setattr(opening, "_OPENERS", dict(opening._OPENERS))
    opening.register_adapter("shelf", Shelf, parse_shelf, open_shelf)
    yield
    SHELVES.clear()


class TestShelf(StoreConformance):
    @pytest.fixture
    async def store(self) -> AsyncIterator[ObjectStore]:
        store = (await open_store(Settings(store="shelf:top"))).store
        yield store
        await store.close()


async def test_a_registered_store_is_opened_by_its_text() -> None:
    opened = await open_store(Settings(store="shelf:top"))
    assert isinstance(opened.store, Retrying)
    assert opened.meter.store is SHELVES["top"]


async def test_a_registered_store_is_a_server_unless_it_says_otherwise() -> None:
    with pytest.raises(Unproven, match="qo doctor"):
        await connect(Settings(store="shelf:top"))


def test_settings_know_its_texts() -> None:
    from qo.config.origins import load

    assert load({"store": "shelf:top"}).location == Shelf("top")
    with pytest.raises(ConfigError, match="needs a name"):
        load({"store": "shelf:"})


def test_queues_of_runtimes_lie_below_it() -> None:
    from qo.dispatcher.outbox.queues import queue_settings

    assert queue_settings(Settings(store="shelf:top"), "spark").store == "shelf:top.queues.spark"
