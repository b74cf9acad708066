"""Every version of every task object of a queue, read without the code that wrote it: by another client, or by SQL."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qo.core import keys, wire
from qo.core.task import Task
from qo.store.retrying import Retrying
from qo.store.sqlite_file import FILE
from support.servers.s3 import S3Server

READS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Version:
    task: Task
    written: float  # By the clock of the store.


Histories = Mapping[str, Sequence[Version]]  # By key, oldest first.


async def read_bucket(s3: S3Server, bucket: str, prefix: str = "") -> Histories:
    """Of a queue below the prefix."""
    listed = await asyncio.to_thread(_list_versions, s3, bucket, prefix + keys.TASKS)
    found: list[tuple[str, bytes, float]] = []
    store = Retrying(await s3.open_store(bucket))
    try:
        for at in range(0, len(listed), READS_AT_ONCE):
            some = listed[at : at + READS_AT_ONCE]
            bodies = await asyncio.gather(*(store.get(key, version=version) for key, version, _ in some))
            for (key, _, written), stored in zip(some, bodies, strict=True):
                assert stored is not None, f"a version of {key} is listed and cannot be read"
                found.append((key, stored.body, written))
    finally:
        await store.close()
    return _by_key(found)


def _list_versions(s3: S3Server, bucket: str, prefix: str) -> list[tuple[str, str, float]]:
    """Keys, versions and when they were written, oldest first. The server lists those of a key newest first."""
    pages = s3.admin.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix)
    listed = [
        (each["Key"], each["VersionId"], each["LastModified"].timestamp())
        for page in pages
        for each in page.get("Versions", ())
    ]
    return listed[::-1]


def read_directory(directory: Path) -> Histories:
    """Of an embedded store; none is there where nobody has opened one."""
    path = directory / FILE
    if not path.exists():
        return {}
    query = """
        SELECT key, body, modified / 1e6 FROM versions
        WHERE substr(key, 1, ?) = ? AND body IS NOT NULL ORDER BY version
    """
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return _by_key(connection.execute(query, (len(keys.TASKS), keys.TASKS)))


def _by_key(versions: Iterable[tuple[str, bytes, float]]) -> Histories:
    found: defaultdict[str, list[Version]] = defaultdict(list)
    for key, body, written in versions:
        found[key].append(Version(wire.decode_task(body, key), written))
    return dict(found)
