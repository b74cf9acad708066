"""The first rows of a dataset on its page: read by the dashboard, which may read data, not by the dispatcher."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from qo.api.contract.task import Claimed, ClaimRequest, CompleteRequest, Outcome, OutputBody
from qo.config.settings import Settings
from qo.dispatcher.attempts import claiming, completion
from qo.dispatcher.engine.loops import router
from qo.dispatcher.state.database import State, open_state
from qo.store.memory import MemoryStore
from qo.ui.data_preview import Previews
from qo.ui.forwarding import Upstream
from support.dispatcher.listeners import served
from support.dispatcher.pipeline_tasks import woken
from support.dispatcher.pipelines import deployed
from support.dispatcher.shop_tasks import DAY, SHOP, emit, tasks
from support.dispatcher.states import create_tables
from support.ui.dashboards import Answer, Visitor, visiting


@pytest.fixture
def books(tmp_path: Path) -> Iterator[State]:
    opened = open_state(f"sqlite:{tmp_path / 'books.db'}")
    create_tables(opened)
    yield opened
    opened.close()


@dataclass(frozen=True)
class Site:
    visitor: Visitor
    file: Path

    async def get(self, path: str) -> tuple[int, Any]:
        token = f"Bearer {self.visitor.dashboard.credentials.dispatcher_token}"
        answer: Answer = await self.visitor.get(path, authorization=token)
        return answer.status, json.loads(answer.body)


def _commit_file(state: State, root: Path) -> Path:
    """Commit a day of shop.clean: one file of two rows, in a directory."""
    deployed(state, SHOP)
    emit(state, "shop.orders", partition_key=DAY)
    router.tick(state)
    (task,) = tasks(state, "shop.clean")
    with state.write() as tx:
        woken(tx, task["id"])
        claim = claiming.claim(tx, ClaimRequest(task_id=task["id"], worker_id="w"), f"file:{root}")
        assert isinstance(claim, Claimed)
        prefix = claim.work.outputs[0].prefix
        file = Path(prefix.removeprefix("file:")) / "part-0.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text('{"shop": "north", "amount": 12345678901234567890, "note": null}\n{"shop": "south"}\n')
        fence = {"task_id": task["id"], "attempt": claim.attempt, "lease_id": claim.lease_id}
        output = OutputBody(output=0, location=prefix, files=[file.name], rows=2)
        body = CompleteRequest(**fence, outcome=Outcome.SUCCESS, outputs=[output])
        completion.complete(tx, body, f"file:{root}")
    return file


@pytest_asyncio.fixture
async def site(books: State, tmp_path: Path) -> AsyncIterator[Site]:
    file = _commit_file(books, tmp_path / "data")
    async with served(books, tmp_path) as dispatcher:
        upstream = Upstream(dispatcher.addresses.public, dispatcher.tokens["reader"])
        async with visiting(MemoryStore(), dispatcher=upstream, previews=Previews(Settings())) as visitor:
            yield Site(visitor, file)


async def test_the_page_shows_the_first_rows_of_a_dataset_without_losing_digits(site: Site) -> None:
    status, answer = await site.get("/v1/datasets/shop.clean/preview?limit=5")
    assert status == 200
    assert answer["columns"] == ["shop", "amount", "note"]
    assert answer["rows"] == [["north", "12345678901234567890", None], ["south", None, None]]
    assert (await site.get("/v1/datasets/shop.clean/preview?limit=1"))[1]["rows"][0][0] == "north"


async def test_what_cannot_be_shown_is_named(site: Site) -> None:
    status, answer = await site.get(f"/v1/datasets/shop.clean/preview?partition={DAY}-not")
    assert (status, "there is no partition" in answer["error"]) == (404, True)
    status, answer = await site.get("/v1/datasets/nothing/preview")
    assert (status, "there is no dataset" in answer["error"]) == (404, True)
    for limit in ("0", "201", "many"):
        status, answer = await site.get(f"/v1/datasets/shop.clean/preview?limit={limit}")
        assert (status, answer["error"]) == (400, f"limit must be between 1 and 200, not {limit!r}")
    site.file.write_text("this is no JSON\n")
    status, answer = await site.get("/v1/datasets/shop.clean/preview")
    assert (status, "is not a JSON value" in answer["error"]) == (409, True)
    site.file.unlink()
    status, answer = await site.get("/v1/datasets/shop.clean/preview")
    assert (status, "is missing: it was collected" in answer["error"]) == (404, True)


async def test_only_the_page_gets_previews(site: Site) -> None:
    answer = await site.visitor.get("/v1/datasets/shop.clean/preview", authorization="Bearer of-somebody-else")
    assert answer.status == 401
