"""File sources: every file that arrives or changes is announced once, and none before it is whole."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from qo.config.settings import S3Settings, Settings
from qo.core.pipeline.dag import SourceKind
from qo.core.pipeline.naming import partition_key
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import pausing
from qo.scheduler.file_listing import matches
from qo.scheduler.file_source import Watchers
from qo.scheduler.sightings import BUCKETS, Sightings, digests
from qo.up.file_sources import is_fully_announced
from support.dispatcher.local_emitter import LocalEmitter
from support.dispatcher.pipelines import dag, deployed, edited, source, staged
from support.servers.s3 import S3Server


class Inbox:
    """A watched directory. Time passes for its watcher as the test says."""

    def __init__(self, state: State, root: Path, pattern: str = "*", **more: str) -> None:
        self.state, self.root, self.seconds = state, root, 0.0
        self.dag = dag("d", source("in", "files", of={"path": f"file:{root}", "pattern": pattern, **more}))
        deployed(state, self.dag)
        self.emitter = LocalEmitter(state)
        self.restart()

    def restart(self) -> None:
        from qo.ambient import Ambient

        ambient = Ambient.seeded(1, monotonic=lambda: self.seconds)
        self.watchers = Watchers(SourceKind.FILES, self.emitter, Settings(), ambient=ambient)

    async def look(self) -> int:
        self.seconds += 31
        looked = await self.watchers.poll()
        assert not looked.failures, looked.failures
        return looked.emitted

    async def settle(self) -> int:
        """Two looks: whatever was whole by the first is announced."""
        return await self.look() + await self.look()

    async def trouble(self) -> str:
        """As ``qo source list`` shows it."""
        [shown] = (await self.emitter.sources("files")).sources
        return shown.last_error or ""

    def write(self, name: str, text: str = "data") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def partitions(self) -> dict[str, str]:
        """Location and file by key."""
        with self.state.read() as tx:
            rows = tx.all(sa.select(schema.partitions))
        return {row["partition_key"]: row["location"] + row["files"][0] for row in rows}


@pytest.fixture
def inbox(state: State, tmp_path: Path) -> Inbox:
    (tmp_path / "in").mkdir()
    return Inbox(state, tmp_path / "in")


async def test_a_file_that_arrives_is_a_partition_that_says_where_it_lies(inbox: Inbox) -> None:
    path = inbox.write("2024/01/a b.csv")
    assert await inbox.settle() == 1
    assert inbox.partitions() == {partition_key("2024/01/a b.csv"): f"file:{path}"}
    with inbox.state.read() as tx:
        (event,) = tx.all(sa.select(schema.events))
    assert event["attributes"]["path"] == "2024/01/a b.csv"
    assert event["attributes"]["size"] == 4
    assert await inbox.look() == 0


async def test_a_file_that_is_being_written_waits_until_it_rests(inbox: Inbox) -> None:
    inbox.write("a", "one")
    assert await inbox.look() == 0
    inbox.write("a", "one and two")
    assert await inbox.look() == 0
    assert await inbox.look() == 1


async def test_a_changed_file_is_the_same_partition_again(inbox: Inbox) -> None:
    inbox.write("a", "old")
    await inbox.settle()
    inbox.write("a", "newer")
    assert await inbox.settle() == 1
    assert list(inbox.partitions()) == ["a"]
    with inbox.state.read() as tx:
        assert len(tx.all(sa.select(schema.commits))) == 2


async def test_a_file_that_disappears_is_not_announced(inbox: Inbox) -> None:
    path = inbox.write("a")
    await inbox.settle()
    path.unlink()
    assert await inbox.settle() == 0


async def test_marks_links_to_nothing_and_what_is_no_file_are_not_looked_at(inbox: Inbox) -> None:
    for name in (".hidden", "_SUCCESS", "_temporary/part", "good"):
        inbox.write(name)
    (inbox.root / "dangling").symlink_to("nowhere")
    os.mkfifo(inbox.root / "pipe")
    assert await inbox.settle() == 1


async def test_a_link_is_not_followed_wherever_it_leads_and_that_is_told_once(
    inbox: Inbox, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("only the worker may read this")
    inbox.write("whole")
    (inbox.root / "out").symlink_to(outside / "secret")
    (inbox.root / "inside").symlink_to(inbox.root / "whole")
    (inbox.root / "folder").symlink_to(outside, target_is_directory=True)
    assert await inbox.settle() == 1
    told = [each for each in caplog.messages if "links" in each]
    assert len(told) == 1
    assert "3 links" in told[0]
    assert await inbox.settle() == 0
    assert [each for each in caplog.messages if "links" in each] == told


async def test_the_place_itself_may_be_a_link(state: State, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a").write_text("data")
    (tmp_path / "place").symlink_to(tmp_path / "real", target_is_directory=True)
    assert await Inbox(state, tmp_path / "place").settle() == 1


async def test_a_restarted_watcher_announces_nothing_again(inbox: Inbox) -> None:
    for number in range(20):
        inbox.write(f"f{number}")
    assert await inbox.settle() == 20
    inbox.restart()
    assert await inbox.settle() == 0
    inbox.write("new")
    assert await inbox.settle() >= 1
    assert inbox.emitter.new == 21


async def test_a_watcher_that_dies_in_between_loses_nothing_and_says_nothing_twice(inbox: Inbox) -> None:
    for number in range(5):
        inbox.write(f"f{number}")
    await inbox.look()
    inbox.emitter.fails = 3
    inbox.seconds += 31
    assert (await inbox.watchers.poll()).failures
    inbox.restart()
    await inbox.settle()
    assert len(inbox.partitions()) == 5
    with inbox.state.read() as tx:
        assert len(tx.all(sa.select(schema.events))) == 5


async def test_two_watchers_of_one_source_announce_each_file_once(inbox: Inbox) -> None:
    other = Watchers(SourceKind.FILES, LocalEmitter(inbox.state), Settings())
    inbox.write("a")
    await other.poll()
    await inbox.settle()
    inbox.write("b")
    await inbox.settle()
    with inbox.state.read() as tx:
        assert len(tx.all(sa.select(schema.events))) == 2


@pytest.mark.parametrize("reason", ["holidays", ""])
async def test_a_paused_source_finds_what_came_meanwhile(inbox: Inbox, reason: str) -> None:
    with inbox.state.write() as tx:
        pausing.pause(tx, "d.in", reason, "anna")
    inbox.write("a")
    assert await inbox.settle() == 0
    with inbox.state.write() as tx:
        pausing.resume(tx, "d.in", "anna")
    assert await inbox.settle() == 1


async def test_another_edition_hears_of_all_the_files_that_are_there(inbox: Inbox) -> None:
    inbox.write("a")
    inbox.write("b.csv")
    await inbox.settle()
    staged(inbox.state, edited(inbox.dag, "in", config={"more": True}))
    await inbox.settle()
    with inbox.state.read() as tx:
        generations = [row["generation_id"] for row in tx.all(sa.select(schema.events))]
    assert sorted(map(generations.count, set(generations))) == [2, 2]


async def test_a_place_that_is_not_there_is_named_and_looked_for_again(state: State, tmp_path: Path) -> None:
    inbox = Inbox(state, tmp_path / "later")
    looked = await inbox.watchers.poll()
    assert "there is no directory" in looked.failures[0]
    assert "there is no directory" in await inbox.trouble()
    inbox.write("a")
    assert await inbox.settle() == 1
    assert await inbox.trouble() == ""


async def test_a_place_that_goes_away_is_forgotten_neither_by_people_nor_by_the_source(inbox: Inbox) -> None:
    inbox.write("a")
    assert await inbox.settle() == 1
    inbox.root.rename(inbox.root.parent / "away")
    inbox.seconds += 31
    assert (await inbox.watchers.poll()).failures
    assert "there is no directory" in await inbox.trouble()
    (inbox.root.parent / "away").rename(inbox.root)
    assert await inbox.settle() == 0  # What it had seen, it knows.
    assert await inbox.trouble() == ""


# Buckets


@pytest.fixture
async def watched(
    state: State, s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Watchers]:
    for name, value in s3_server.environment(s3_bucket).items():
        monkeypatch.setenv(name, value)
    where = {"path": f"s3://{s3_bucket}/in", "pattern": "*.csv", "poll_seconds": 1}
    deployed(state, dag("d", source("in", "files", of=where)))
    settings = Settings(s3=S3Settings(endpoint=s3_server.endpoint, region=s3_server.region))
    now = [0.0]

    def monotonic() -> float:
        now[0] += 10.0
        return now[0]

    from qo.ambient import Ambient

    async with Watchers(
        SourceKind.FILES, LocalEmitter(state), settings, ambient=Ambient.seeded(1, monotonic)
    ) as watchers:
        yield watchers


async def test_objects_below_a_prefix_are_announced_at_once(
    state: State, watched: Watchers, s3_server: S3Server, s3_bucket: str
) -> None:
    for key in ("in/a.csv", "in/deep/b.csv", "in/c.txt", "in/_tmp/d.csv", "other/e.csv"):
        s3_server.admin.put_object(Bucket=s3_bucket, Key=key, Body=b"x")
    looked = await watched.poll()
    assert (looked.emitted, looked.failures) == (2, ())
    with state.read() as tx:
        rows = tx.all(sa.select(schema.partitions))
    assert {row["location"] + row["files"][0] for row in rows} == {
        f"s3://{s3_bucket}/in/a.csv",
        f"s3://{s3_bucket}/in/deep/b.csv",
    }
    assert (await watched.poll()).emitted == 0
    s3_server.admin.put_object(Bucket=s3_bucket, Key="in/a.csv", Body=b"changed")
    assert (await watched.poll()).emitted == 1


# What is remembered


@pytest.mark.fast
def test_memory_of_a_hundred_thousand_files_is_small_and_knows_them_all() -> None:
    present = {f"2024/part-{number}.csv": f"etag-{number}" for number in range(100_000)}
    sightings = Sightings()
    assert len(sightings.fresh(present)) == 100_000
    for path, mark in present.items():
        sightings.mark_announced(path, mark)
    memory = sightings.memory()
    assert len(str(memory)) < 16_384
    assert Sightings(memory).fresh(present) == []
    present["new"] = "etag"
    again = Sightings(memory).fresh(present)
    assert "new" in again
    assert len(again) < 3 * 100_000 / BUCKETS


@pytest.mark.fast
@pytest.mark.parametrize("memory", [None, {}, 7, {"buckets": "!"}, {"buckets": "abc"}, {"buckets": None}])
def test_a_memory_that_cannot_be_read_is_none(memory: object) -> None:
    assert Sightings(memory).fresh({"a": "1"}) == ["a"]


@pytest.mark.fast
def test_digests_do_not_depend_on_order() -> None:
    files = [(f"f{number}", "x") for number in range(100)]
    assert digests(files) == digests(reversed(files))
    assert digests(files) != digests([*files[:-1], ("f99", "y")])


@pytest.mark.fast
def test_a_pattern_is_about_the_name_or_with_a_slash_about_the_path() -> None:
    assert matches("a/b.csv", "*.csv")
    assert matches("a/b.csv", "a/*.csv")
    assert not matches("a/b.csv", "b/*.csv")
    assert not matches("a/b.CSV", "*.csv")


async def test_a_key_is_taken_from_the_path_and_what_has_none_is_reported(state: State, tmp_path: Path) -> None:
    inbox = Inbox(state, tmp_path, "*.csv", key="{year}/{month}/{day}/*.csv")
    path = inbox.write("2026/03/29/orders.csv")
    assert await inbox.settle() == 1
    assert inbox.partitions() == {"2026-03-29": f"file:{path}"}
    inbox.write("2026/03/notes.csv")
    assert await inbox.settle() == 0
    assert "1 file of 'pattern' do not fit 'key'" in await inbox.trouble()
    answer = await inbox.emitter.sources("files")
    assert await is_fully_announced(
        answer.sources[0], Settings(), answer.now
    )  # So `qo up --once` waits for no file that is left out.
    inbox.write("2026/03/30/a.csv")
    second = inbox.write("2026/03/30/b.csv")
    assert await inbox.settle() == 0
    assert "both have the key 2026-03-30, so neither is announced" in await inbox.trouble()
    second.unlink()
    (tmp_path / "2026/03/notes.csv").unlink()
    assert await inbox.settle() == 1
    assert await inbox.trouble() == ""
    assert inbox.partitions().keys() == {"2026-03-29", "2026-03-30"}
