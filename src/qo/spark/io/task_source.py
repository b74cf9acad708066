"""A data source for Spark: the tasks of a queue as a table, read in parallel, shard by shard.

    task_source.register(spark)
    spark.read.format("qo").option("store", "local:.qo").load()
    spark.read.format("qo").option("store", "s3://bucket/prefix").option("history", "true").load()

With ``history`` there is a row for every version of every task, which shows what happened to it. Executors read the
store themselves, so they need qo and access to it: with the credentials of their environment, or, through ``tasks``,
those of the caller.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from qo.config.location import parse
from qo.config.origins import load
from qo.config.settings import Settings
from qo.core import keys, wire
from qo.core.task import Status, Task
from qo.errors import CorruptRecord, UsageError
from qo.queue.listing import READS_AT_ONCE, pages
from qo.store.opening import open_store
from qo.store.port import ObjectStore

T = TypeVar("T")

NAME = "qo"
GROUPS = 8  # Groups of shards, each read by one Spark task, unless the option ``groups`` says otherwise.
GROUPS_MAX = 16  # By the first character of a shard.
SCHEMA = (
    "id string, type string, status string, shard string, attempt int, priority int, created_at timestamp, "
    "available_at timestamp, updated_at timestamp, completed_at timestamp, lease_expires_at timestamp, "
    "worker_id string, retry_count int, reschedule_count int, error string, schedule string, input string, "
    "output string, progress string, version string, latest boolean"
)
_CREDENTIALS = ("accesskey", "secretkey", "sessiontoken")  # Spark redacts options of these names.
_OPTIONS = {"store", "history", "groups", "status", "type", "endpoint", "region", *_CREDENTIALS}


def register(spark: SparkSession) -> None:
    """Register the format ``qo`` with a session."""
    spark.dataSource.register(TaskSource)


def tasks(
    spark: SparkSession, store: str | None = None, *, history: bool = False, settings: Settings | None = None
) -> DataFrame:
    """Return the tasks of the queue that the settings name, or of another store, with this process's credentials."""
    resolved = settings or load({} if store is None else {"store": store})
    register(spark)
    reader = (
        spark.read.format(NAME).option("store", store or resolved.store).option("history", str(history).lower())
    )
    if parse(store or resolved.store).as_bucket() is not None:
        from qo.spark.io.objects import Bucket  # Loads pyarrow, which only buckets need.

        reader = reader.options(**Bucket(resolved.s3).access())
    return reader.load()


class TaskSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType | str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(parse_options({str(key).lower(): str(value) for key, value in self.options.items()}))


@dataclass(frozen=True, slots=True)
class Options:
    """What is read, as the options say."""

    store: str
    history: bool
    groups: int
    status: Status | None
    type: str | None
    access: Mapping[str, str]

    def admits(self, task: Task) -> bool:
        return self.status in (None, task.status) and self.type in (None, task.task_type)


def parse_options(texts: Mapping[str, str]) -> Options:
    """Parse the options of a reader. Raises UsageError for those that are unknown, missing, or cannot be read."""
    unknown = sorted(texts.keys() - _OPTIONS)
    if unknown:
        raise UsageError(f"the source qo has no option {unknown[0]!r}: it has {', '.join(sorted(_OPTIONS))}")
    if "store" not in texts:
        raise UsageError("the source qo needs the option 'store': local:PATH or s3://BUCKET[/PREFIX]")
    try:
        location = parse(texts["store"])
        history = {"true": True, "false": False}[texts.get("history", "false").lower()]
        groups = max(1, min(GROUPS_MAX, int(texts.get("groups", GROUPS))))
        status = Status(texts["status"]) if "status" in texts else None
    except (KeyError, ValueError) as error:
        raise UsageError(f"an option of the source qo cannot be read: {error}") from None
    if not location.is_shared:
        raise UsageError(f"the store {texts['store']} is inside one process: others cannot read it")
    store = location.text  # Executors may have been started in another directory.
    access = {name: texts[name] for name in ("endpoint", "region", *_CREDENTIALS) if name in texts}
    return Options(store, history, groups, status, texts.get("type"), access)


class _Group(InputPartition):
    def __init__(self, heads: Sequence[str]) -> None:
        super().__init__(None)
        self.heads = heads  # First characters of shards.


class _Reader(DataSourceReader):
    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        every = self._options.groups
        return [_Group("0123456789abcdef"[at::every]) for at in range(every)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return iterate(rows(self._options, getattr(partition, "heads", ())))


def iterate(items: AsyncIterator[T]) -> Iterator[T]:
    """Iterate over an asynchronous iterator from code that is not asynchronous."""
    loop = asyncio.new_event_loop()
    try:
        while True:
            try:
                step: Coroutine[Any, Any, T] = anext(items)  # pyright: ignore[reportAssignmentType]
                yield loop.run_until_complete(step)
            except StopAsyncIteration:
                return
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def rows(options: Options, heads: Sequence[str]) -> AsyncIterator[tuple[Any, ...]]:
    """Yield the rows of tasks whose shards begin with these characters."""
    store = await open_queue_store(options)
    try:
        for head in heads:
            async for entries in pages(store, f"{keys.TASKS}{head}"):
                task_keys = [entry.key for entry in entries if keys.task_id_of(entry.key) is not None]
                for start in range(0, len(task_keys), READS_AT_ONCE):
                    some = task_keys[start : start + READS_AT_ONCE]
                    for versions in await asyncio.gather(*(_versions(store, key, options) for key in some)):
                        for row in versions:
                            yield row
    finally:
        await store.close()


async def open_queue_store(options: Options) -> ObjectStore:
    bucket, access = parse(options.store).as_bucket(), options.access
    if bucket is None or "accesskey" not in access:
        return (await open_store(load({"store": options.store}))).store
    from qo.store.retrying import Retrying
    from qo.store.s3 import S3Store
    from qo.store.s3.aws_credentials import Credentials

    credentials = Credentials(access["accesskey"], access["secretkey"], access.get("sessiontoken"))
    store = await S3Store.open(
        bucket.bucket,
        prefix=bucket.prefix,
        endpoint=access.get("endpoint"),
        region=access.get("region"),
        credentials=credentials,
    )
    return Retrying(store)


async def _versions(store: ObjectStore, key: str, options: Options) -> list[tuple[Any, ...]]:
    if not options.history:
        stored = await store.get(key)
        return [] if stored is None else _rows(stored.body, key, options, None, latest=True)
    rows: list[tuple[Any, ...]] = []
    for each in reversed(await store.versions(key)):
        stored = None if each.deleted else await store.get(key, version=each.version)
        if stored is not None:
            rows += _rows(stored.body, key, options, each.version, latest=each.latest)
    return rows


def _rows(body: bytes, key: str, options: Options, version: str | None, *, latest: bool) -> list[tuple[Any, ...]]:
    """Return one row, or none for an object that cannot be read: it must not hide all the others."""
    try:
        task = wire.decode_task(body, key)
    except CorruptRecord:
        return []
    return [row_of(task, version, latest=latest)] if options.admits(task) else []


def row_of(task: Task, version: str | None, *, latest: bool) -> tuple[Any, ...]:
    """Return the row of a task, in the order of the schema."""
    return (
        task.id,
        task.task_type,
        str(task.status),
        task.shard,
        task.attempt,
        task.priority,
        task.created_at,
        task.available_at,
        task.updated_at,
        task.completed_at,
        task.lease_expires_at,
        task.worker_id,
        task.retry_count,
        task.reschedule_count,
        task.last_error,
        task.schedule,
        _json(task.input),
        _json(task.output),
        _json(task.progress),
        version,
        latest,
    )


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)
