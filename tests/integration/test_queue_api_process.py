"""``qo serve`` as a process: tokens, unknown senders, and its end."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

import qo as package
from support.cli.command import Qo
from support.dispatcher.listeners import NO_TLS


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


def ask(url: str, token: str, method: str = "GET", **how: Any) -> httpx.Response:
    with httpx.Client(trust_env=False, verify=NO_TLS, timeout=30) as client:
        return client.request(method, url, headers={"Authorization": f"Bearer {token}"}, **how)


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


def test_an_address_in_use_is_a_clear_error(qo: Qo) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        answer = qo("serve", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert answer.code == 2
    assert "serve.listen" in answer.err
