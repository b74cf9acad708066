"""http sources: every new ETag behind a URL is announced once, and an unchanged file costs no body."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import qo
from qo.ambient import Ambient
from qo.config.fetch import FetchSettings
from qo.config.settings import Settings
from qo.core.pipeline.dag import SourceKind
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.errors import UsageError
from qo.scheduler.file_source import Watchers
from qo.scheduler.http_files import parse_index
from support.dispatcher.local_emitter import LocalEmitter
from support.dispatcher.pipelines import dag, deployed, source
from support.dispatcher.states import Clock

INDEX = "https://example.com/data/index.txt"


class Site:
    """A web server on the loopback interface: ETag and body by path, and the status of every answer."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[str, bytes]] = {}
        self.statuses: list[int] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                etag, body = site.pages.get(self.path, ("", b""))
                unchanged = bool(etag) and self.headers.get("If-None-Match") == etag
                status = 404 if self.path not in site.pages else 304 if unchanged else 200
                site.statuses.append(status)
                self.send_response(status)
                if etag:
                    self.send_header("ETag", etag)
                self.send_header("Content-Length", str(0 if status != 200 else len(body)))
                self.end_headers()
                self.wfile.write(body if status == 200 else b"")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.server.shutdown()
    site.server.server_close()


class Watched:
    """A deployed http source. Time passes for its watcher as the test says."""

    settings = Settings(fetch=FetchSettings(networks=("127.0.0.0/8",)))

    def __init__(self, state: State, **config: Any) -> None:
        self.state, self.seconds = state, 0.0
        partitions = config.pop("partitions", None)
        fields = {} if partitions is None else {"partitions": partitions}
        deployed(state, dag("d", source("in", "http", of=config, **fields)))
        self.emitter = LocalEmitter(state)
        self.restart()

    def restart(self) -> None:
        ambient = Ambient.seeded(1, monotonic=lambda: self.seconds)
        self.watchers = Watchers(SourceKind.HTTP, self.emitter, self.settings, ambient=ambient)

    async def poll(self) -> int:
        self.seconds += 31
        result = await self.watchers.poll()
        assert not result.failures, result.failures
        return result.emitted

    def files(self) -> list[str]:
        with self.state.read() as tx:
            rows = tx.all(sa.select(schema.partitions))
        return sorted(row["location"] + row["files"][0] for row in rows)


async def test_a_file_is_announced_when_it_appears_and_when_its_etag_changes(state: State, site: Site) -> None:
    watched = Watched(state, urls=[f"{site.url}/a.csv", f"{site.url}/b.csv"])
    site.pages["/a.csv"] = ('"1"', b"x")
    async with watched.watchers:
        assert await watched.poll() == 1
        assert watched.files() == [f"{site.url}/a.csv"]
        site.statuses.clear()
        assert await watched.poll() == 0
        assert sorted(site.statuses) == [304, 404]
        site.pages["/a.csv"], site.pages["/b.csv"] = ('"2"', b"y"), ('"1"', b"z")
        assert await watched.poll() == 2
    assert watched.files() == [f"{site.url}/a.csv", f"{site.url}/b.csv"]


async def test_a_restarted_scheduler_announces_nothing_again(state: State, site: Site) -> None:
    site.pages["/a.csv"] = ('"1"', b"x")
    watched = Watched(state, urls=[f"{site.url}/a.csv"])
    async with watched.watchers:
        assert await watched.poll() == 1
    watched.restart()
    async with watched.watchers:
        assert await watched.poll() == 0
    assert watched.emitter.new == 1


async def test_an_index_is_read_again_only_when_it_changes(state: State, site: Site) -> None:
    site.pages = {"/data/index.txt": ('"1"', b"# files\na.csv\n/b.csv\n"), "/data/a.csv": ('"1"', b"")}
    watched = Watched(state, index_url=f"{site.url}/data/index.txt")
    async with watched.watchers:
        assert await watched.poll() == 1
        site.pages["/b.csv"] = ('"1"', b"")
        assert await watched.poll() == 1
        site.pages["/data/index.txt"] = ('"2"', b'["c.csv"]')
        site.pages["/data/c.csv"] = ('"1"', b"")
        assert await watched.poll() == 1
    assert watched.files() == [f"{site.url}/b.csv", f"{site.url}/data/a.csv", f"{site.url}/data/c.csv"]


async def test_one_url_that_fails_does_not_hold_the_others_up_and_a_source_that_fails_says_why(
    state: State, site: Site
) -> None:
    site.pages = {"/a.csv": ('"1"', b""), "/plain.csv": ("", b"")}  # The second has no ETag.
    watched = Watched(state, urls=[f"{site.url}/plain.csv", f"{site.url}/a.csv"])
    async with watched.watchers:
        assert await watched.poll() == 1
        [shown] = (await watched.emitter.sources("http")).sources
        assert (shown.last_error or "").startswith("1 of 2 files could not be looked at: "), "not only logged"
        site.pages["/a.csv"] = ('"2"', b"")
        assert await watched.poll() == 1
        [shown] = (await watched.emitter.sources("http")).sources
        assert "1 of 2 files" in (shown.last_error or ""), "also when others are news"
        site.pages["/a.csv"] = ("", b"")
        watched.seconds += 31
        [failure] = (await watched.watchers.poll()).failures
    assert "has neither ETag nor Last-Modified" in failure
    [shown] = (await watched.emitter.sources("http")).sources
    assert "has neither ETag nor Last-Modified" in (shown.last_error or "")


async def test_the_error_goes_when_all_can_be_looked_at_again(state: State, site: Site) -> None:
    site.pages = {"/a.csv": ('"1"', b""), "/b.csv": ("", b"")}
    watched = Watched(state, urls=[f"{site.url}/a.csv", f"{site.url}/b.csv"])
    async with watched.watchers:
        await watched.poll()
        site.pages["/b.csv"] = ('"1"', b"")
        assert await watched.poll() == 1
        await watched.poll()
    [shown] = (await watched.emitter.sources("http")).sources
    assert shown.last_error is None


@pytest.mark.parametrize("body", [b"[1]", b"[", b"ftp://example.com/a", b"\xff"])
def test_an_index_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(UsageError, match="the index"):
        parse_index(body, INDEX)


def test_an_index_is_lines_or_json() -> None:
    urls = ("https://example.com/data/a", "https://other.example/b?c=1")
    assert parse_index(b"a\n\n# comment\nhttps://other.example/b?c=1\na\n", INDEX) == urls
    assert parse_index(b'["a", "https://other.example/b?c=1"]', INDEX) == urls


def test_a_kind_of_source_is_known_to_its_declaration_and_its_implementation_only() -> None:
    root = Path(qo.__file__).parent
    words = ("index_url", "SourceKind.HTTP", "http_files")
    files = {path for path in root.rglob("*.py") if any(word in path.read_text() for word in words)}
    named = {path.relative_to(root).as_posix() for path in files}
    assert named == {
        "core/pipeline/dag.py",
        "pipeline/declared_sources.py",
        "pipeline/sources.py",
        "scheduler/http_files.py",
    }


async def test_a_source_looks_at_no_address_that_is_not_public(state: State, site: Site) -> None:
    site.pages["/a.csv"] = ('"1"', b"x")
    watched = Watched(state, urls=[f"{site.url}/a.csv"])
    watched.settings = Settings()
    watched.restart()
    async with watched.watchers:
        looked = await watched.watchers.poll()
    assert "is not public" in looked.failures[0]
    assert site.statuses == []


async def test_there_is_one_file_for_each_partition_and_each_is_announced_when_it_appears(
    state: State, site: Site, state_clock: Clock
) -> None:
    with state.read() as tx:
        today = tx.now.date()
    days = [today - timedelta(days=back) for back in range(40)]
    pages = [f"/{each:%Y/%m/%d}.csv" for each in days]
    site.pages = {pages[1]: ('"1"', b"x"), pages[39]: ('"1"', b"x")}
    watched = Watched(
        state,
        url=f"{site.url}/{{year}}/{{month}}/{{day}}.csv",
        partitions={"kind": "day", "start": f"{days[39]}"},
    )

    def keys() -> list[str]:
        with state.read() as tx:
            return sorted(row["partition_key"] for row in tx.all(sa.select(schema.partitions)))

    async with watched.watchers:
        assert await watched.poll() == 2
        assert keys() == [f"{days[39]}", f"{days[1]}"]
        assert len(site.statuses) == 40
        site.statuses.clear()
        site.pages |= {pages[0]: ('"1"', b"y"), pages[38]: ('"1"', b"z")}
        assert await watched.poll() == 1  # Of the newest 32.
        assert (len(site.statuses), keys()) == (32, [f"{days[39]}", f"{days[1]}", f"{days[0]}"])
        state_clock.advance(86_400)
        assert await watched.poll() == 1  # All are asked for once a day.
        assert f"{days[38]}" in keys()
