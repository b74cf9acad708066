"""``qo serve`` as a process: tokens, unknown senders, and its end."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

import qo as package
from support.cli.command import Qo
from support.dispatcher.listeners import NO_TLS
from support.stores.write_lock import writes_held_up

NO_HEADERS: Mapping[str, str] = {}


@pytest.fixture
def qo(tmp_path: Path) -> Qo:
    return Qo(tmp_path, {"QO_SERVE_LISTEN": "127.0.0.1:0", "QO_LOG": "warning"})


@contextmanager
def serving(qo: Qo) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    process = qo.start("serve", "--json")
    try:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("}"):
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            lines.append(line)
            if line.strip().startswith("{") and line.strip().endswith("}"):
                break
        yield json.loads("".join(lines))["url"], process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ask(
    url: str, token: str, method: str = "GET", more: Mapping[str, str] = NO_HEADERS, **how: Any
) -> httpx.Response:
    with httpx.Client(trust_env=False, verify=NO_TLS, timeout=30) as client:
        return client.request(method, url, headers={"Authorization": f"Bearer {token}", **more}, **how)


def test_tokens_work_while_they_are_in_the_file(qo: Qo) -> None:
    with serving(qo) as (url, _):
        local = (qo.cwd / ".qo/secrets/serve.token").read_text().strip()
        assert ask(f"{url}/v1/tasks", local).json() == {"tasks": [], "next": None, "complete": True}
        created = qo.json("serve", "token", "create", "shop", "--role", "producer")
        answer = ask(f"{url}/v1/tasks", created["token"], "POST", json={"type": "echo"})
        assert answer.status_code == 201
        assert ask(f"{url}/v1/tasks", created["token"]).status_code == 403
        assert [each["name"] for each in qo.json("serve", "token", "list")] == ["shop"]
        qo.ok("serve", "token", "revoke", created["id"])
        assert ask(f"{url}/v1/tasks/{answer.json()['id']}", created["token"]).status_code == 401
        assert qo.here("serve", "token", "revoke", created["id"]).code == 3
        for wrong in (("a b",), ("shop", "--expires-in", "0"), ("shop", "--expires-in", "99999999999d")):
            assert qo.here("serve", "token", "create", *wrong).code == 2


def test_an_unknown_sender_is_refused_before_its_body_comes(qo: Qo) -> None:
    with serving(qo) as (url, _):
        parts = urlsplit(url)
        with socket.create_connection((parts.hostname, parts.port), timeout=10) as client:
            client.sendall(
                b"POST /v1/tasks HTTP/1.1\r\nHost: qo\r\nAuthorization: Bearer guess\r\nContent-Length: 5000\r\n\r\n"
            )
            assert client.recv(100).startswith(b"HTTP/1.1 401")


def test_a_stopped_server_answers_who_waits_and_exits_with_0(qo: Qo) -> None:
    with serving(qo) as (url, process):
        local = (qo.cwd / ".qo/secrets/serve.token").read_text().strip()
        task = ask(f"{url}/v1/tasks", local, "POST", json={"type": "echo"}).json()

        async def wait_and_stop() -> httpx.Response:
            async with httpx.AsyncClient(trust_env=False, verify=NO_TLS, timeout=30) as client:
                headers = {"Authorization": f"Bearer {local}"}
                path = f"{url}/v1/tasks/{task['id']}/wait?timeout=60"
                waiting = asyncio.create_task(client.get(path, headers=headers))
                while True:
                    metrics = await client.get(f"{url}/metrics", headers=headers)
                    if "qo_serve_waiting 1.0" in metrics.text:
                        break
                process.send_signal(signal.SIGTERM)
                return await waiting

        answer = asyncio.run(wait_and_stop())
        assert (answer.status_code, answer.json()["status"]) == (202, "pending")
        assert process.wait(timeout=20) == 0


def test_a_killed_server_loses_nothing_that_it_has_acknowledged(qo: Qo) -> None:
    with serving(qo) as (url, process):
        local = (qo.cwd / ".qo/secrets/serve.token").read_text().strip()
        made = [ask(f"{url}/v1/tasks", local, "POST", json={"type": "echo", "input": n}).json() for n in range(5)]
        process.kill()
    with package.blocking(f"local:{qo.cwd / '.qo'}") as (queue, run):
        assert {run(queue.get(each["id"])).input for each in made} == set(range(5))


MANY = 400


async def count_tasks(queue: package.Queue) -> int:
    return len((await queue.store.list("tasks/")).entries)


def test_a_server_that_is_killed_while_it_submits_many_is_asked_again_with_the_same_key(qo: Qo) -> None:
    """What it had written is found again, the rest is written, and other tasks under the same key are refused."""
    body = {"tasks": [{"type": "echo", "input": n} for n in range(MANY)]}
    key = {"Idempotency-Key": "import-7"}
    store = qo.cwd / ".qo"
    with serving(qo) as (url, process), ThreadPoolExecutor() as threads:
        local = (store / "secrets/serve.token").read_text().strip()
        sent = threads.submit(ask, f"{url}/v1/tasks/batch", local, "POST", json=body, more=key)
        with package.blocking(f"local:{store}") as (queue, run):
            while not run(count_tasks(queue)):
                assert not sent.done(), sent.result().text
            with writes_held_up(store):
                process.kill()
                process.wait()
            written = run(count_tasks(queue))
        with pytest.raises(httpx.TransportError):
            sent.result()
    assert 0 < written < MANY, "it was killed in the middle"
    with serving(qo) as (url, _):
        again = ask(f"{url}/v1/tasks/batch", local, "POST", json=body, more=key).json()["results"]
        assert [each["task"]["input"] for each in again] == list(range(MANY))
        assert sum(not each["created"] for each in again) == written
        third = ask(f"{url}/v1/tasks/batch", local, "POST", json=body, more=key).json()["results"]
        assert [each["task"]["id"] for each in third] == [each["task"]["id"] for each in again]
        assert not any(each["created"] for each in third)
        other = {"tasks": [{"type": "echo", "input": "something else"}, *body["tasks"][1:3]]}
        refused, *same = ask(f"{url}/v1/tasks/batch", local, "POST", json=other, more=key).json()["results"]
        assert refused["error"]["status"] == 409
        assert [each["created"] for each in same] == [False, False]
        listed = ask(f"{url}/v1/tasks?limit=1000", local).json()
        assert len(listed["tasks"]) == MANY


def test_an_address_in_use_is_a_clear_error(qo: Qo) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        answer = qo("serve", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert answer.code == 2
    assert "serve.listen" in answer.err
