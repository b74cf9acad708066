"""The logs of runs, from real processes: live, whole at the end, kept when a worker is killed, and collected."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from typing import Any

import pytest

from qo.errors import NotFound
from support.dispatcher.sites import SHORT_LEASE_S, Site, embedded, job, pipeline, servers, site
from support.stores.queues import until

__all__ = ["embedded", "servers", "site"]  # Fixtures.
SECRET = "correct-horse-battery"


async def log_of(site: Site, task_id: str, **query: Any) -> dict[str, Any]:
    return await site.client.get(f"/v1/tasks/{task_id}/log", **query)


def texts(page: dict[str, Any]) -> list[str]:
    return [line["text"] for line in page["lines"]]


async def seen(site: Site, name: str, text: str, **query: Any) -> dict[str, Any]:
    """The log of the only task of the job, once it has that line."""

    async def there() -> dict[str, Any] | None:
        if not (tasks := await asyncio.to_thread(site.tasks, name)):
            return None
        page = await log_of(site, tasks[0]["id"], **query)
        return page if text in texts(page) else None

    return await until(there, within_s=60, every_s=0.1)


def follow(site: Site, task_id: str, *options: str) -> subprocess.Popen[str]:
    command = site.qo(QO_DISPATCHER_URL=f"http://127.0.0.1:{site.ports[0]}")
    return subprocess.Popen(
        command.command("run", "logs", task_id, "--follow", *options),
        cwd=command.cwd,
        env=command.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def test_a_log_is_read_while_its_attempt_runs_and_stays_when_its_worker_is_killed(site: Site) -> None:
    gate = site.directory / "gate"
    chatty = job("chatty", operator="chatter", config={"gate": str(gate), "failures": 2})
    async with site.dispatcher():
        await site.deploy(pipeline(chatty, lease_s=SHORT_LEASE_S))
        await site.emit("p1")
        async with site.worker("w1", SHOP_PASSWORD=SECRET) as worker:
            page = await seen(site, "chatty", "from a child")  # While it waits.
            task_id = page["task_id"]
            assert (page["attempt"], page["running"], page["status"]) == (1, True, "running")
            following = follow(site, task_id)
            worker.signal(signal.SIGKILL)
            await worker.code()
        assert SECRET in worker.said or SECRET in worker._out.read_text()  # Its own log is as it was.
        site.lapse("w1")
        gate.touch()
        async with site.worker("w2", SHOP_PASSWORD=SECRET):
            await site.completed({"chatty": 1})
            out, err = await asyncio.to_thread(following.communicate, timeout=60)
        first, second, last = [await log_of(site, task_id, attempt=number) for number in (1, 2, 3)]
    assert [(line["stream"], line["text"]) for line in first["lines"]] == [
        ("stdout", "begin p1, attempt 1"),
        ("log", "a warning of p1"),
        ("stdout", "from a child"),
        ("stdout", "(hidden)"),
    ]
    assert (first["outcome"], first["running"], first["dropped"]) == ("timed_out", False, 0)
    assert texts(second)[-1] == texts(last)[-1] == "end p1"  # Whole, as soon as the attempt has ended.
    assert (second["outcome"], second["error"]) == ("retried", "ValueError: not this time")
    assert last["outcome"] == "completed"
    # Whoever followed has seen the attempts in turn.
    assert following.returncode == 0, err
    printed = [line.split("  ", 2)[2] for line in out.splitlines()]
    assert printed == [*texts(first), *texts(second), *texts(last)]
    assert "attempt 2 retried: ValueError: not this time" in err
    assert "attempt 3 completed" in err


async def test_a_log_is_paged_printed_and_collected_and_silence_costs_nothing(embedded: Site) -> None:
    site = embedded
    gate = site.directory / "gate"
    gate.touch()
    async with site.dispatcher(), site.worker("w1"):
        await site.deploy(pipeline(job("quiet"), job("chatty", operator="chatter", config={"gate": str(gate)})))
        await site.emit("p1")
        await site.completed({"chatty": 1, "quiet": 1})
        quiet_id, task_id = site.task("quiet")["id"], site.task("chatty")["id"]
        page = await log_of(site, quiet_id)
        assert (page["lines"], page["attempt"], page["running"]) == ([], 1, False)
        with pytest.raises(NotFound, match="no attempt 7"):
            await log_of(site, task_id, attempt=7)
        with pytest.raises(NotFound, match="no task"):
            await log_of(site, "00000000-0000-4000-8000-000000000000")
        whole = texts(await log_of(site, task_id))
        pages: list[str] = []
        after, more = 0, True
        while more:
            page = await log_of(site, task_id, after=after, limit=2)
            pages += texts(page)
            after, more = page["after"], page["more"]
        assert pages == whole
        assert texts(await log_of(site, task_id, last=1)) == ["end p1"]
    await asyncio.to_thread(check_commands, site, task_id, whole)


def check_commands(site: Site, task_id: str, whole: list[str]) -> None:
    """Without a dispatcher, from the files."""
    command = site.qo()
    assert texts(command.json("run", "logs", task_id)) == whole
    followed = command.ok("run", "logs", task_id, "-f", "--json").splitlines()
    assert [json.loads(line)["text"] for line in followed] == whole
    logs = list((site.directory / ".qo/data/_logs").rglob("*.jsonl"))
    assert [path.parts[-3] for path in logs] == [task_id]
    assert command.json("collect")["logs"] == 0
    assert command.json("collect", "--logs-older-than", "0s")["logs"] == 1
    assert not logs[0].exists()
    assert texts(command.json("run", "logs", task_id)) == []
