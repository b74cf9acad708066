"""Collecting deletes what may go, and touches nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from qo.agent.collection import collect
from qo.api.contract.garbage import PrefixVerdict
from qo.store.bucket_directory import BucketDirectory
from qo.store.directory import Directory
from qo.store.local_directory import LocalDirectory
from qo.store.memory import MemoryStore

FILES = ("part-0.parquet", "deep/part-1.parquet", "_SUCCESS")


def prefix(task: int, attempt: int = 1) -> str:
    return "/".join([*(str(UUID(int=n + 1)) for n in (1, 2, task + 10)), str(attempt)])


OURS = [prefix(task, attempt) for task in range(3) for attempt in (1, 2, 10)]
MANIFESTS = [f"_manifests/{name}/{revision}.json" for name in ("orders", "a%2Fb") for revision in (7, 12)]
TASK = str(UUID(int=77))
LOGS = [f"_logs/2026-11-{day:02d}/{TASK}/{attempt}" for day in (7, 17) for attempt in (1, 2)]
OTHERS = [
    f"_logs/2026-11-07/{TASK}/notes.txt",
    "_logs/readme",
    "bundles/abc.zip",
    "_manifests/orders/latest.json",
    "_manifests/orders/.lock",
    "_manifests/orders/1/7.json",
    "_manifests/orders/07.json",
    f"{prefix(1).rpartition('/')[0]}/notes.txt",
    "readme",
]
LINES = "0000000001.jsonl"
ALL = [f"{each}/{name}" for each in OURS for name in FILES] + MANIFESTS + OTHERS
ALL += [f"{each}/{LINES}" for each in LOGS]


def directory(tmp_path: Path) -> Directory:
    for key in ALL:
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(b"four")
    (tmp_path / "linked").symlink_to(tmp_path)
    return LocalDirectory(tmp_path)


async def root_of(kind: str, tmp_path: Path) -> tuple[Directory, MemoryStore]:
    store = MemoryStore()
    if kind == "directory":
        return directory(tmp_path), store
    for key in ALL:
        await store.put(key, b"four")
    return BucketDirectory(store, "memory:#"), store


async def left(kind: str, tmp_path: Path, store: MemoryStore) -> set[str]:
    if kind == "bucket":
        return {each.key for each in (await store.list("")).entries}
    return {key for key in ALL if (tmp_path / key).exists()}


async def judge(prefixes: Sequence[str]) -> list[PrefixVerdict]:
    return [
        PrefixVerdict(
            prefix=each,
            gone=each.endswith(("/1", "/10", "/7.json")),
            why="so" if each.endswith("/1") else "not so",
        )
        for each in prefixes
    ]


@pytest.mark.parametrize("kind", ["directory", "bucket"])
async def test_what_may_go_is_deleted_and_nothing_else(kind: str, tmp_path: Path) -> None:
    root, store = await root_of(kind, tmp_path)
    told: list[str] = []
    would = await collect(root, judge, dry_run=True, on_deleted=lambda found, why: told.append(found.prefix))
    assert await left(kind, tmp_path, store) == set(ALL)
    done = await collect(root, judge, dry_run=False)
    assert (would.prefixes, would.files, would.bytes) == (done.prefixes, done.files, done.bytes) == (6, 22, 88)
    assert would.logs == done.logs == 2
    assert sorted(told) == sorted(
        each for each in OURS + MANIFESTS + LOGS if not each.endswith(("/2", "/12.json"))
    )
    kept = {f"{each}/{name}" for each in OURS if each.endswith("/2") for name in FILES}
    kept |= {each for each in MANIFESTS if each.endswith("/12.json")}
    kept |= {f"{each}/{LINES}" for each in LOGS if each.endswith("/2")}
    assert await left(kind, tmp_path, store) == kept | set(OTHERS)
    again = await collect(root, judge, dry_run=False)
    assert (again.prefixes, again.kept_by_reason) == (0, {"not so": 3})
    await root.close()


async def test_a_collection_that_was_cut_off_is_begun_again(tmp_path: Path) -> None:
    root = directory(tmp_path)

    class Stop(Exception):
        pass

    def stop(found: object, why: str) -> None:
        raise Stop

    with pytest.raises(Stop):
        await collect(root, judge, dry_run=False, on_deleted=stop)
    assert (await collect(root, judge, dry_run=False)).prefixes == 5


async def test_a_root_that_is_not_there_yet_has_nothing_to_collect(tmp_path: Path) -> None:
    done = await collect(LocalDirectory(tmp_path / "nowhere"), judge, dry_run=False)
    assert (done.prefixes, done.kept_by_reason) == (0, {})


async def test_an_attempt_that_wrote_nothing_leaves_no_directory(tmp_path: Path) -> None:
    (tmp_path / prefix(1)).mkdir(parents=True)
    done = await collect(LocalDirectory(tmp_path), judge, dry_run=False)
    assert (done.prefixes, done.files) == (1, 0)
    assert not (tmp_path / prefix(1)).parent.exists()
