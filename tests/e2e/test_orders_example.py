"""The pipeline in examples/orders, as its reader would try it: deployed, fed, run, asked, edited and deployed again."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from support.cli.command import Qo
from support.dispatcher.sites import Site

EXAMPLE = Path(__file__).parents[2] / "examples" / "orders"
DAYS = ["2026-01-01", "2026-01-02"]


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Site]:
    for path in EXAMPLE.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path)
    site = Site(tmp_path, f"sqlite:{tmp_path / '.qo' / 'state.db'}", {})
    yield site
    await site.close()


async def call(qo: Qo, *args: str) -> Any:
    """The answer of a command."""
    return await asyncio.to_thread(qo.json, *args)


async def ran(qo: Qo) -> Counter[tuple[str, str]]:
    """How many tasks there are, by job and status."""
    return Counter((each["job"], each["status"]) for each in await call(qo, "run", "list", "shop"))


async def currencies(shop: Site, qo: Qo) -> set[str]:
    """Those that the published totals of the second day have: all that are accepted."""
    found = {each["partition_key"]: each for each in await call(qo, "dataset", "partitions", "daily_totals")}
    where = shop.directory / found[DAYS[1]]["location"].removeprefix("file:")
    lines = [line for file in where.iterdir() for line in file.read_text().splitlines()]
    return {json.loads(line)["currency"] for line in lines}


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, after))


async def test_the_example_runs_rebuilds_what_changed_and_nothing_else(shop: Site) -> None:
    async with shop.dispatcher(), shop.worker("w1"):
        qo = shop.qo(QO_DISPATCHER_URL=f"http://127.0.0.1:{shop.ports[0]}")
        await _first(shop, qo)
        await _again(shop, qo)
        await _edited(shop, qo)


async def _first(shop: Site, qo: Qo) -> None:
    assert (await call(qo, "dag", "deploy", "pipeline.yaml"))["deployed"]["status"] == "active"
    for day in DAYS:
        await call(qo, "emit", "shop.orders", "--partition", day, "--key", day)
    await shop.completed({"orders": 2, "clean": 2, "totals": 2})
    why = await call(qo, "why", f"daily_totals@{DAYS[0]}")
    assert why["verdict"] == "there", why
    told = "\n".join(why["lines"])
    assert all(name in told for name in ("shop.orders", "shop.clean", "shop.totals"))
    listed = {f"{each['dag']}.{each['job']}" for each in await call(qo, "dataset", "list")}
    assert listed >= {"shop.orders", "shop.clean", "shop.totals"}
    (task,) = [each for each in shop.tasks("clean") if each["partition_key"] == DAYS[0]]
    shown = await call(qo, "run", "show", task["id"])
    assert (shown["output"]["kept"] + shown["output"]["rejected"], len(shown["commits"])) == (40, 2)
    assert await currencies(shop, qo) == {"EUR", "USD"}


async def _again(shop: Site, qo: Qo) -> None:
    """The same once more is no work at all."""
    before = await ran(qo)
    assert (await call(qo, "dag", "deploy", "pipeline.yaml"))["deployed"]["version"] == 1
    assert (await call(qo, "emit", "shop.orders", "--partition", DAYS[0], "--key", DAYS[0]))["repeated"]
    assert await ran(qo) == before == {(name, "completed"): 2 for name in ("orders", "clean", "totals")}


async def _edited(shop: Site, qo: Qo) -> None:
    """An edited job is built again for all history, and what reads it; then all of it takes over at once."""
    edit(shop.directory / "pipeline.yaml", "currencies: [EUR, USD]", "currencies: [EUR]")
    diff = await call(qo, "dag", "diff", "pipeline.yaml")
    done = await call(qo, "dag", "deploy", "pipeline.yaml", "--activate", "--timeout", "60s")
    assert [each["job"] for each in diff["edited"]] == ["clean"]
    assert ([each["job"] for each in diff["rebuilt"]], diff["carried_over"]) == (["clean", "totals"], ["orders"])
    assert done["activated"]["version"] == 2, done
    assert await ran(qo) == {("orders", "completed"): 2, ("clean", "completed"): 4, ("totals", "completed"): 4}
    assert await currencies(shop, qo) == {"EUR"}
    await call(qo, "dag", "rollback", "shop")
    assert await currencies(shop, qo) == {"EUR", "USD"}
    await call(qo, "emit", "shop.orders", "--partition", "2026-01-03", "--key", "3")
    await shop.completed({"orders": 3, "clean": 5, "totals": 5})
