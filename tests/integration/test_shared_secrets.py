"""Dispatcher processes on one database, each with a directory of its own: what one has issued the other accepts."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

from qo.api.contract.task import Claimed, HeartbeatRequest
from qo.api.internal_client import DispatcherClient
from qo.config.secret_keys import SecretsSettings
from qo.dispatcher.auth.signing_keys import KeyRing
from qo.dispatcher.secrets.chosen_store import open_database_secrets
from support.dispatcher.listeners import NO_TLS
from support.dispatcher.sites import WITHIN_S, Process, Site, embedded, job, on_postgres, pipeline
from support.stores.queues import until

__all__ = ["embedded", "on_postgres"]

KEY = f"k1:{base64.b64encode(bytes(32)).decode()}"
WORKERS = "qow_token-of-all-workers"
HOOK = {
    "name": "hook",
    "activation": "source",
    "runtime": "dispatcher",
    "operator": "noop",
    "source": {"kind": "webhook", "webhook_path": "orders/new", "secret": "shop"},
    "outputs": 1,
    "update_strategy": "replace",
}


@pytest.fixture(params=["on_postgres", pytest.param("embedded", marks=pytest.mark.long)])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    shared: Site = request.getfixturevalue(request.param)
    (tmp_path / "keys").write_text(KEY)
    (tmp_path / "keys").chmod(0o600)
    shared._environment |= {
        "QO_SECRETS_KEY_FILE": str(tmp_path / "keys"),
        "QO_WORKER_TOKEN": WORKERS,
        **({"QO_SECRETS_PLACE": "database"} if request.param == "embedded" else {}),
    }
    return shared


@asynccontextmanager
async def dispatchers(site: Site) -> AsyncIterator[tuple[Process, Process]]:
    """Two that start at once, each on a machine of its own."""
    first, second = site.dispatcher(0), site.dispatcher(1, QO_SECRETS_DIR=str(site.directory / "second"))
    try:
        processes = await asyncio.gather(first.__aenter__(), second.__aenter__())
        yield processes[0], processes[1]
    finally:
        await asyncio.gather(first.__aexit__(None, None, None), second.__aexit__(None, None, None))


def ring_of(site: Site, **options: Any) -> KeyRing:
    """The keys, as an operator's machine has them."""
    return KeyRing.open(open_database_secrets(SecretsSettings(keys=KEY), site.state), **options)


async def published(site: Site, number: int) -> list[str]:
    url = f"http://127.0.0.1:{site.ports[2 * number + 1]}/internal/jwks/task"
    async with httpx.AsyncClient(trust_env=False, verify=NO_TLS) as http:
        return [each["kid"] for each in (await http.get(url)).json()["keys"]]


async def claim(site: Site, number: int, task_id: str) -> tuple[str, HeartbeatRequest]:
    client = DispatcherClient(f"http://127.0.0.1:{site.ports[2 * number + 1]}", WORKERS)

    async def claimed_when_released() -> Claimed | None:
        answer = await client.claim(task_id, "w")
        return answer if isinstance(answer, Claimed) else None

    try:
        claimed = await until(claimed_when_released, within_s=WITHIN_S, every_s=0.1)
    finally:
        await client.close()
    fence = {"task_id": task_id, "attempt": claimed.attempt, "lease_id": claimed.lease_id}
    return claimed.capability_token, HeartbeatRequest.model_validate(fence)


async def beat(site: Site, number: int, capability: str, request: HeartbeatRequest) -> None:
    client = DispatcherClient(f"http://127.0.0.1:{site.ports[2 * number + 1]}", WORKERS)
    try:
        await client.heartbeat(capability, request)
    finally:
        await client.close()


async def knock(site: Site, number: int, secret: str, key: str) -> int:
    """Send a webhook; return the status of the answer."""
    body = json.dumps({"idempotency_key": key, "events": [{"partition_key": key}]}).encode()
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    url = f"http://127.0.0.1:{site.ports[2 * number]}/v1/webhooks/orders/new"
    headers = {"X-Hub-Signature-256": f"sha256={signature}"}
    async with httpx.AsyncClient(trust_env=False, verify=NO_TLS) as http:
        return (await http.post(url, content=body, headers=headers)).status_code


async def knocked(site: Site, number: int, secret: str, key: str, status: int) -> None:
    """The dispatcher answers so within seconds."""

    async def answered() -> bool:
        return await knock(site, number, secret, key) == status

    await until(answered, within_s=WITHIN_S, every_s=0.1)


async def pending(site: Site, name: str, count: int) -> list[str]:
    async def there() -> list[str] | None:
        found = [row["id"] for row in await asyncio.to_thread(site.tasks, name) if row["status"] == "pending"]
        return found if len(found) >= count else None

    return await until(there, within_s=WITHIN_S, every_s=0.1)


async def test_dispatchers_that_share_only_a_database_accept_each_others_tokens_and_webhooks(site: Site) -> None:
    async with dispatchers(site) as processes:
        assert len(await published(site, 0)) == 1
        assert await published(site, 0) == await published(site, 1)
        await site.deploy(pipeline(HOOK, job("a")))
        await site.emit("p1", "p2")
        first, second = (await pending(site, "a", 2))[:2]
        for task_id, issuer, verifier in ((first, 0, 1), (second, 1, 0)):
            await beat(site, verifier, *await claim(site, issuer, task_id))

        admin = site.qo()
        old = (await asyncio.to_thread(admin.json, "source", "secret", "set", "shop"))["secret"]
        await asyncio.gather(*(knocked(site, number, old, f"o{number}", 200) for number in (0, 1)))
        new = (await asyncio.to_thread(admin.json, "source", "secret", "rotate", "shop"))["secret"]
        await asyncio.gather(*(knocked(site, number, new, f"n{number}", 200) for number in (0, 1)))
        assert await knock(site, 1, old, "o1") == 200
        await asyncio.to_thread(admin.json, "source", "secret", "retire", "shop")
        await asyncio.gather(*(knocked(site, number, old, f"o{number}", 401) for number in (0, 1)))
        assert await knock(site, 1, new, "n1") == 200

        files = [path.name for path in site.directory.rglob("*") if path.name.startswith(("key-", "webhook-"))]
        assert files == []
        for process in processes:
            assert not [secret for secret in (old, new, KEY.partition(":")[2]) if secret in process.said]


@pytest.mark.long
async def test_a_rotation_reaches_every_dispatcher_while_it_runs(site: Site) -> None:
    async with dispatchers(site):
        await site.deploy(pipeline(job("a")))
        await site.emit("p1", "p2")
        first, second = (await pending(site, "a", 2))[:2]
        before = await claim(site, 0, first)
        ring = ring_of(site, overlap=timedelta(seconds=2))
        with site.state.read() as tx:
            new = ring.rotate(tx.now)

        async def seen_by_both() -> bool:
            return all([new in await published(site, number) for number in (0, 1)])

        async def due() -> bool:
            with site.state.read() as tx:
                return ring.list_keys(tx.now)[-1].use == "signs"

        await until(seen_by_both, within_s=WITHIN_S, every_s=0.1)
        await until(due, within_s=WITHIN_S, every_s=0.1)
        after = await claim(site, 1, second)
        assert jwt.get_unverified_header(after[0])["kid"] == new
        assert jwt.get_unverified_header(before[0])["kid"] != new
        await beat(site, 0, *after)
        await beat(site, 1, *before)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_nothing_is_lost_when_keys_rotate_under_load_and_rotations_are_killed(site: Site) -> None:
    async with dispatchers(site) as processes, site.worker("w0", 0), site.worker("w1", 1):
        await site.deploy(pipeline(job("a"), job("b", "a")))
        feeding = asyncio.create_task(site.feed(25, every_s=0.5))
        ring = ring_of(site, overlap=timedelta(seconds=2))
        kids: set[str] = set()
        for delay_s in (0.2, 0.5, 0.8, 1.1, 1.4):
            await kill_rotation(site, delay_s)
            with site.state.read() as tx:
                ring.secrets.refresh(at_once=True)
                assert [each.use for each in ring.list_keys(tx.now)].count("signs") == 1
                kids.add(ring.rotate(tx.now))
            await asyncio.sleep(1.0)
        names = await feeding
        await site.completed({"a": len(names), "b": len(names)})
        site.audit(["a", "b"], names)
        assert len(kids) > 1
        for process in processes:
            assert "refused" not in process.said


async def kill_rotation(site: Site, delay_s: float) -> None:
    """Begin ``qo key rotate``, and kill it after a while."""
    command = site.qo()
    process = await asyncio.create_subprocess_exec(
        *command.command("key", "rotate", "--urgent"),
        cwd=site.directory,
        env=command.environment,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    await asyncio.sleep(delay_s)
    if process.returncode is None:
        os.kill(process.pid, signal.SIGKILL)
    await process.wait()
