"""A dashboard for a test, and clients of it. Servers and clients share the event loop; boto3 gets threads."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from qo.dispatcher import aws
from qo.store.port import ObjectStore
from qo.store.s3 import Credentials, S3Store
from qo.ui.assets import Assets
from qo.ui.dashboard import BUCKET, REGION, S3, Dashboard, Served
from qo.ui.data_preview import Previews
from qo.ui.forwarding import Dispatcher
from support.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server, start_seaweed

ROLE = "arn:aws:iam::role/dashboards"
ANYBODY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": ["sts:AssumeRole"]}],
}
ALL = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}]}
# A role that may do everything: what is refused below, the session policy refuses.
IAM = {
    "sts": {
        "tokenDuration": "1h",
        "maxSessionLength": "12h",
        "issuer": "tests",
        "signingKey": base64.b64encode(b"test key of 32 characters long").decode(),
    },
    "policy": {"defaultEffect": "Deny", "storeType": "memory"},
    "roles": [{"roleName": "dashboards", "roleArn": ROLE, "trustPolicy": ANYBODY, "attachedPolicies": ["all"]}],
    "policies": [{"name": "all", "document": ALL}],
}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Visitor:
    """Who has a link to a dashboard."""

    def __init__(self, dashboard: Dashboard) -> None:
        self.dashboard = dashboard
        self.host = dashboard.url.removeprefix("http://")
        self.endpoint = dashboard.url + S3

    def boto(self) -> Any:
        held = self.dashboard.credentials
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=held.access_key_id,
            aws_secret_access_key=held.secret_access_key,
            config=Config(
                retries={"total_max_attempts": 1},
                connect_timeout=5,
                read_timeout=5,
                s3={"addressing_style": "path"},
            ),
        )

    async def ask(self, question: Callable[[Any], Any]) -> Any:
        """Put to boto3, in a thread: the dashboard has ours."""

        def asked() -> Any:
            client = self.boto()
            try:
                return question(client)
            finally:
                client.close()

        return await asyncio.to_thread(asked)

    async def store(self) -> S3Store:
        held = self.dashboard.credentials
        return await S3Store.open(
            BUCKET,
            endpoint=self.endpoint,
            region=REGION,
            credentials=Credentials(held.access_key_id, held.secret_access_key),
        )

    async def send(self, raw: bytes) -> list[Answer]:
        """What comes back on one connection that is closed after this."""
        reader, writer = await asyncio.open_connection(*self.host.split(":"))
        writer.write(raw)
        writer.write_eof()
        try:
            async with asyncio.timeout(10):
                return _answers(await reader.read())
        finally:
            writer.close()
            await writer.wait_closed()

    async def get(self, path: str, *, method: str = "GET", body: bytes = b"", **headers: str) -> Answer:
        """``headers``: with underscores for hyphens."""
        named = {"host": self.host, **{name.replace("_", "-"): value for name, value in headers.items()}}
        if body:
            named["content-length"] = str(len(body))
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items())]
        (answer,) = await self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return answer


def _answers(raw: bytes) -> list[Answer]:
    found: list[Answer] = []
    while raw:
        head, _, rest = raw.partition(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)}
        length = int(headers.get("content-length", 0))
        found.append(Answer(int(line.split()[1]), headers, rest[:length]))
        raw = rest[length:]
    return found


@asynccontextmanager
async def visiting(
    store: ObjectStore,
    *,
    read_only: bool = False,
    dispatcher: Dispatcher | None = None,
    static: Path | None = None,
    queues: Sequence[str] = (),
    previews: Previews | None = None,
) -> AsyncIterator[Visitor]:
    async def below() -> Sequence[str]:
        return queues

    served = Served(store, below, dispatcher, read_only, previews=previews)
    dashboard = await Dashboard.open(served, assets=Assets(static) if static is not None else None)
    try:
        yield Visitor(dashboard)
    finally:
        await dashboard.close()


def page(directory: Path) -> Path:
    """A page as the build leaves it, but small."""
    (directory / "assets").mkdir(parents=True)
    (directory / "index.html").write_text('<!doctype html><script type="module" src="./assets/i-abc.js"></script>')
    (directory / "assets/i-abc.js").write_text("console.log('hello, dashboard');" * 100)
    (directory / "assets/i-abc.css").write_text("body { margin: 0 }")
    (directory / "icon.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (directory / "config.json").write_text("{}")
    return directory


def read_fragment(text: str) -> dict[str, Any]:
    """What the page makes of the text after ``#c=``."""
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def start_with_sts(directory: Path) -> S3Server:
    """A server that hands out short-lived credentials for the role."""
    (directory / "iam.json").write_text(json.dumps(IAM))
    return start_seaweed(directory, f"-s3.iam.config={directory / 'iam.json'}")


@contextmanager
def running_with_sts(directory: Path) -> Iterator[S3Server]:
    """The same, with this process as its administrator meanwhile."""
    server = start_with_sts(directory)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patched.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        aws.client.cache_clear()
        yield server
        aws.client.cache_clear()
    server.stop()
