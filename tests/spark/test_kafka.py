"""Topics of a real broker as an always-on source: each record once, whatever dies, and errors that say why."""

from __future__ import annotations

import asyncio
import io
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import pytest_asyncio
import sqlalchemy as sa

from qo.config.location import local_path
from qo.dispatcher.state import schema
from support.dispatcher.sites import proven
from support.servers.kafka import PASSWORD, USER, KafkaBroker, reader_jars, start_kafka
from support.servers.ports import free_ports
from support.servers.postgres import PostgresServer
from support.servers.s3 import S3Server
from support.spark import session
from support.spark.gates import Gate
from support.spark.sites import Plant, job, pipeline, planted
from support.stores.queues import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

WITHIN_S = 120.0  # Two cores, on which others work, too.
WORKER = "w1"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    broker = start_kafka(tmp_path_factory.mktemp("kafka"))
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def reader(broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The settings of a worker that has Spark's reader for Kafka."""
    directory = tmp_path_factory.mktemp("jars")
    for jar in reader_jars():
        (directory / jar.name).symlink_to(jar)
    return {"QO_SPARK_CONF": f"{session.ENVIRONMENT['QO_SPARK_CONF']},spark.driver.extraClassPath={directory}/*"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plant(reader: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Plant]:
    async with planted(tmp_path_factory.mktemp("plant") / "site") as plant:
        yield plant


@dataclass
class Feed:
    """A pipeline whose only source reads topics."""

    plant: Plant
    dag: str
    config: dict[str, Any]
    fields: dict[str, Any]

    async def deploy(self, **changed: Any) -> None:
        self.config |= changed
        rows = {
            "name": "rows",
            "activation": "source",
            "runtime": "spark",
            "operator": "kafka",
            "source": {"kind": "always_on"},
            "outputs": 1,
            "config": self.config,
            **self.fields,
        }
        query = "SELECT count(*) AS n FROM rows"
        sums = job("sums", "sql", "rows", config={"query": query}, execution_strategy="PerUpdate")
        source = pipeline(self.dag, [rows, sums])
        client = self.plant.site.client
        version = await client.post(f"/v1/dags/{self.dag}/versions", {"source": source})
        if changed:
            await client.put(f"/v1/dags/{self.dag}/active", {"version": version["version"]})

    async def pause(self) -> None:
        await self.plant.site.client.post(f"/v1/dags/{self.dag}.rows/pause", {"reason": "test"})
        await self.became("stopped")

    async def resume(self) -> None:
        await self.plant.site.client.post(f"/v1/dags/{self.dag}.rows/resume")

    async def became(self, state: str) -> None:
        async def there() -> bool:
            await asyncio.to_thread(self.plant.site.hasten)
            return (await asyncio.to_thread(self.source))["state"] == state

        await until(there, within_s=WITHIN_S, every_s=0.05)

    def source(self) -> dict[str, Any]:
        tasks, sources = schema.tasks, schema.sources
        query = sa.select(sources).join(tasks, tasks.c.id == sources.c.task_id).where(tasks.c.dag == self.dag)
        with self.plant.site.state.read() as tx:
            return dict(tx.one(query) or {"state": None, "last_error": None})

    def commits(self) -> list[dict[str, Any]]:
        commits, datasets = schema.commits, schema.datasets
        query = sa.select(commits).join(datasets, datasets.c.id == commits.c.dataset_id)
        query = query.where(datasets.c.dag == self.dag, datasets.c.job == "rows").order_by(commits.c.revision)
        with self.plant.site.state.read() as tx:
            return [dict(each) for each in tx.all(query)]

    def rows(self) -> list[dict[str, Any]]:
        """All that is committed, in the order of the records."""
        names = [f"{each['location']}{name}" for each in self.commits() for name in each["files"] or ()]
        tables = (parquet.ParquetFile(local_path(name)).read().to_pylist() for name in names)
        rows = [row for table in tables for row in table]
        return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))

    def values(self) -> list[Any]:
        return [row["value"] for row in self.rows()]

    def position(self) -> Any:
        return self.commits()[-1]["stats"]["position"]

    async def began(self) -> None:
        """It has committed where it begins."""
        await self._until_there(self.commits)

    async def committed(self, rows: int) -> None:
        await self._until_there(lambda: sum(each["rows"] or 0 for each in self.commits()) >= rows)

    async def _until_there(self, ask: Any) -> None:
        async def there() -> Any:
            await asyncio.to_thread(self.plant.site.hasten)
            return await asyncio.to_thread(ask)

        try:
            await until(there, within_s=WITHIN_S, every_s=0.1)
        except TimeoutError:
            raise AssertionError(f"{self.source()}, {self.commits()}") from None

    async def failed(self) -> str:
        """How the last attempt failed."""

        async def text() -> Any:
            source = await asyncio.to_thread(self.source)
            return source["state"] == "dead" and source["last_error"]

        return await until(text, within_s=WITHIN_S, every_s=0.1)


@asynccontextmanager
async def feed(plant: Plant, dag: str, config: dict[str, Any], **fields: Any) -> AsyncIterator[Feed]:
    """Deployed, and stopped at the end: a source that runs would keep a slot of the worker."""
    made = Feed(plant, dag, {"trigger_seconds": 0, **config}, fields)
    await made.deploy()
    yield made
    await made.pause()


async def test_records_of_all_partitions_arrive_and_offsets_go_on_after_a_restart(
    plant: Plant, broker: KafkaBroker, reader: dict[str, str]
) -> None:
    await plant.workers(WORKER, **reader)
    topic = broker.make_topic(partitions=3)
    broker.send(topic, "a", "b", key=b"x")
    broker.send(topic, "c", partition=2)
    async with feed(plant, "restarts", {"servers": broker.servers, "topics": [topic]}) as rows:
        await rows.committed(3)
        assert [(row["value"], row["key"], row["partition"], row["offset"]) for row in rows.rows()] == [
            ("a", "x", 0, 0),
            ("b", "x", 0, 1),
            ("c", None, 2, 0),
        ]
        first = rows.commits()[0]  # Where the stream begins, without rows.
        assert (first["cursor"], first["rows"], first["stats"]) == (
            0,
            0,
            {"position": {topic: {"0": 0, "1": 0, "2": 0}}},
        )
        await rows.pause()
        broker.send(topic, "d", partition=1)
        broker.send(topic, "e")
        await rows.resume()
        await rows.committed(5)
        assert rows.values() == ["a", "b", "e", "d", "c"]
        assert rows.position() == {topic: {"0": 3, "1": 1, "2": 1}}
        cursors = [each["cursor"] for each in rows.commits()]
        assert cursors == sorted(set(cursors))


@pytest.mark.long
async def test_a_stream_that_begins_at_the_latest_record_begins_once(
    plant: Plant, broker: KafkaBroker, reader: dict[str, str]
) -> None:
    """A record that comes while it is down, before it has ever had one, is not lost."""
    await plant.workers(WORKER, **reader)
    topic = broker.make_topic()
    broker.send(topic, "before")
    async with feed(plant, "latest", {"servers": broker.servers, "topics": [topic], "from": "latest"}) as rows:
        await rows.began()
        await rows.pause()
        broker.send(topic, "while it is down")
        await rows.resume()
        await rows.committed(1)
        assert rows.values() == ["while it is down"]


@pytest.mark.long
async def test_a_stream_begins_at_the_first_record_from_a_time_on(
    plant: Plant, broker: KafkaBroker, reader: dict[str, str]
) -> None:
    await plant.workers(WORKER, **reader)
    topic = broker.make_topic(partitions=2)
    for n, second in enumerate((0, 1, 2)):
        broker.send_at(topic, 1_767_225_600_000 + 1000 * second, f"v{n}")
    config = {"servers": broker.servers, "topics": [topic], "from": "2026-01-01T01:00:01+01:00"}
    async with feed(plant, "since", config) as rows:
        await rows.committed(2)
        broker.send(topic, "later", partition=1)  # Which had no record from then on.
        await rows.committed(3)
        assert rows.values() == ["v1", "v2", "later"]


@pytest.mark.long
async def test_a_topic_that_is_created_later_is_read_from_its_beginning(
    plant: Plant, broker: KafkaBroker, reader: dict[str, str]
) -> None:
    await plant.workers(WORKER, **reader)
    config = {
        "servers": broker.servers,
        "pattern": "later-.*",
        "from": "latest",
        "options": {"kafka.metadata.max.age.ms": 500},
    }
    async with feed(plant, "later", config) as rows:
        await rows.began()
        assert rows.position() == {}
        for name in ("later-a", "sooner", "later-b"):
            broker.send(broker.make_topic(name=name), name)
        await rows.committed(2)
        assert rows.values() == ["later-a", "later-b"]
        await rows.pause()
        broker.send(broker.make_topic(name="later-c"), "later-c")
        await rows.resume()
        await rows.committed(3)
        assert rows.values() == ["later-a", "later-b", "later-c"]


async def test_a_topic_that_does_not_exist_is_an_error_until_it_does(
    plant: Plant, broker: KafkaBroker, reader: dict[str, str]
) -> None:
    await plant.workers(WORKER, **reader)
    there = broker.make_topic(name="a-topic")  # Only the first topics are listed.
    async with feed(plant, "absent", {"servers": broker.servers, "topics": ["absent"]}) as rows:
        error = await rows.failed()
        assert "there is no topic 'absent': create it, or correct 'topics'; there are " in error
        assert there in error
        broker.send(broker.make_topic(name="absent"), "a")
        await rows.committed(1)


async def test_expired_records_are_an_error_until_the_job_says_to_go_on(
    plant: Plant, broker: KafkaBroker, reader: dict[str, str]
) -> None:
    await plant.workers(WORKER, **reader)
    topic = broker.make_topic()
    broker.send(topic, "a")
    async with feed(plant, "expired", {"servers": broker.servers, "topics": [topic]}) as rows:
        await rows.committed(1)
        await rows.pause()
        broker.send(topic, "b", "c", "d")
        broker.expire(topic, before=3)
        await rows.resume()
        error = await rows.failed()
        assert (
            f"records are gone that were not read yet: {topic}, partition 0: records 1 to 2 have expired" in error
        )
        assert "Write 'expired: skip'" in error
        await rows.deploy(expired="skip")
        await rows.committed(2)
        assert rows.values() == ["a", "d"]
        assert rows.position() == {topic: {"0": 4}}


@pytest.mark.long
async def test_records_that_expire_while_they_are_waited_for_are_an_error_too(
    plant: Plant, broker: KafkaBroker, reader: dict[str, str]
) -> None:
    await plant.workers(WORKER, **reader)
    topic = broker.make_topic()
    broker.send(topic, "a")
    async with feed(plant, "gone", {"servers": broker.servers, "topics": [topic]}) as rows:
        await rows.committed(1)
        with broker.transaction(topic, "b", "c", "d"):
            broker.expire(topic, before=3)  # Nobody can have read them.
        error = await rows.failed()
        assert "records are gone that were not read yet" in error
        assert "'expired: skip'" in error
        await rows.deploy(expired="skip")
        await rows.committed(2)
        assert rows.values() == ["a", "d"]


@pytest.mark.long
async def test_records_of_a_topic_that_was_made_anew_are_read_if_the_job_says_to_go_on(
    plant: Plant, broker: KafkaBroker, reader: dict[str, str]
) -> None:
    await plant.workers(WORKER, **reader)
    topic = broker.make_topic()
    broker.send(topic, "a", "b")
    async with feed(plant, "anew", {"servers": broker.servers, "topics": [topic]}) as rows:
        await rows.committed(2)
        await rows.pause()
        broker.delete_topic(topic)
        broker.make_topic(name=topic)
        broker.send(topic, "new")
        await rows.resume()
        assert "it was made anew or cut" in await rows.failed()
        await rows.deploy(expired="skip")
        await rows.committed(3)
        assert sorted(rows.values()) == ["a", "b", "new"]


@pytest.mark.long
async def test_an_address_without_a_broker_is_an_error_that_says_so(plant: Plant, reader: dict[str, str]) -> None:
    await plant.workers(WORKER, **reader)
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    soon = {"options": {"kafka.request.timeout.ms": 2000, "kafka.default.api.timeout.ms": 3000}}
    async with feed(plant, "nobody", {"servers": address, "topics": ["t"], **soon}) as rows:
        error = await rows.failed()
        assert f"Kafka at {address} does not answer; check the address" in error
    config = {"servers": "kafka.invalid:9092", "topics": ["t"]}
    async with feed(plant, "nowhere", config) as rows:
        assert "Kafka at kafka.invalid:9092 does not answer" in await rows.failed()


async def test_a_value_that_does_not_fit_stops_the_stream_before_it_or_is_kept_as_declared(
    plant: Plant, broker: KafkaBroker, reader: dict[str, str]
) -> None:
    await plant.workers(WORKER, **reader)
    topic = broker.make_topic()
    columns = [{"name": "id", "type": "bigint"}]
    config = {"servers": broker.servers, "topics": [topic], "columns": columns, "rows_per_batch": 1}
    broker.send(topic, '{"id": 1}', "oops", None)
    async with feed(plant, "malformed", config) as rows:
        await rows.committed(1)
        assert f"the record 1 of {topic}, partition 0, has oops in place of JSON" in await rows.failed()
        await rows.deploy(malformed="keep")
        await rows.committed(3)
        assert [(row["id"], row["malformed"]) for row in rows.rows()] == [(1, None), (None, "oops"), (None, None)]
        assert {each["generation_id"] for each in rows.commits()} == {rows.commits()[0]["generation_id"]}


@pytest.mark.long
async def test_records_of_transactions_arrive_when_these_are_committed(
    plant: Plant, broker: KafkaBroker, reader: dict[str, str]
) -> None:
    await plant.workers(WORKER, **reader)
    topic = broker.make_topic()
    with broker.transaction(topic, "given up", commit=False):
        pass
    with broker.transaction(topic, "a", "b"):
        pass
    async with feed(plant, "transactions", {"servers": broker.servers, "topics": [topic]}) as rows:
        await rows.committed(2)
        await rows.pause()
        with broker.transaction(topic, "c"):
            await rows.resume()
            await rows.became("running")
        await rows.committed(3)
        assert rows.values() == ["a", "b", "c"]


@pytest.mark.long
async def test_a_login_is_a_secret_of_the_job(
    plant: Plant, broker: KafkaBroker, reader: dict[str, str], tmp_path: Path
) -> None:
    await plant.workers(WORKER, **reader)
    secret = plant.site.directory / ".qo" / "secrets" / "secret-kafka"
    secret.write_text("wrong")
    secret.chmod(0o600)
    topic = broker.make_topic()
    broker.send(topic, "a")
    config = {"servers": broker.login_servers, "topics": [topic], "user": USER, "password_secret": "kafka"}
    config |= {"options": {"kafka.security.protocol": "SASL_PLAINTEXT"}}
    async with feed(plant, "login", config, secrets=["kafka"]) as rows:
        assert f"Kafka at {broker.login_servers} refused the login" in await rows.failed()
        secret.write_text(PASSWORD)
        await rows.committed(1)
        (worker,) = await plant.workers(WORKER)
        seen = worker.said + json.dumps(rows.commits(), default=str) + json.dumps(rows.source(), default=str)
        assert PASSWORD not in seen
        assert json.dumps(PASSWORD)[1:-1] not in seen


@pytest.mark.long
async def test_a_broker_that_was_away_is_read_on_where_it_was(
    plant: Plant, broker: KafkaBroker, reader: dict[str, str]
) -> None:
    await plant.workers(WORKER, **reader)
    topic = broker.make_topic()
    broker.send(topic, "a")
    async with feed(plant, "away", {"servers": broker.servers, "topics": [topic]}) as rows:
        await rows.committed(1)
        await asyncio.to_thread(broker.stop)
        await asyncio.to_thread(broker.start)
        broker.send(topic, "b")
        await rows.committed(2)
        assert rows.values() == ["a", "b"]


@pytest.mark.long
async def test_a_worker_that_is_killed_in_the_middle_of_a_batch_loses_and_repeats_no_record(
    plant: Plant, broker: KafkaBroker, reader: dict[str, str]
) -> None:
    topic = broker.make_topic(partitions=2)
    gate = Gate(plant.site.ports[1])
    async with gate.open() as url:
        (first,) = await plant.workers("killed", **reader, QO_DISPATCHER_INTERNAL_URL=url)
        await stopped(plant, WORKER)
        async with feed(plant, "killed", {"servers": broker.servers, "topics": [topic]}) as rows:
            broker.send(topic, "a", "b")
            await rows.committed(2)
            gate.closed = True
            broker.send(topic, "c", "d", partition=1)
            async with asyncio.timeout(WITHIN_S):
                await gate.seen.wait()  # It is written, and not committed.
            first.signal(signal.SIGKILL)
            await first.code()
            gate.closed = False
            broker.send(topic, "e")
            await asyncio.to_thread(plant.site.lapse, "killed")
            await plant.workers(WORKER, **reader)
            await rows.committed(5)
            assert rows.values() == ["a", "b", "e", "c", "d"]
            assert len({each["attempt"] for each in rows.commits()}) == 2


async def stopped(plant: Plant, name: str) -> None:
    worker = plant.running(name)
    if worker is not None:
        worker.signal(signal.SIGTERM)
        await worker.code(within_s=90)


@pytest.mark.long
async def test_data_in_a_bucket_needs_no_checkpoint_there_and_no_jar_of_hadoop(
    broker: KafkaBroker,
    reader: dict[str, str],
    tmp_path: Path,
    postgres_server: PostgresServer,
    s3_server: S3Server,
    s3_bucket: str,
) -> None:
    """With the state in PostgreSQL."""
    await proven(s3_server, s3_bucket)
    environment = {**s3_server.environment(s3_bucket), "QO_DATA": f"s3://{s3_bucket}/data"}
    topic = broker.make_topic(partitions=2)
    broker.send(topic, "a", "b")
    async with planted(tmp_path / "site", postgres_server.make_database(), environment) as plant:
        await plant.workers("bucket", **reader)
        async with feed(plant, "bucket", {"servers": broker.servers, "topics": [topic]}) as rows:
            await rows.committed(2)
            await rows.pause()
            broker.send(topic, "c", partition=1)
            await rows.resume()
            await rows.committed(3)
            assert rows.position() == {topic: {"0": 2, "1": 1}}
            names = [f"{each['location']}{name}" for each in rows.commits() for name in each["files"] or ()]
    keys = [name.removeprefix(f"s3://{s3_bucket}/") for name in names]
    bodies = [s3_server.admin.get_object(Bucket=s3_bucket, Key=key)["Body"].read() for key in keys]
    tables = [parquet.ParquetFile(io.BytesIO(body)).read().to_pylist() for body in bodies]
    assert sorted(row["value"] for table in tables for row in table) == ["a", "b", "c"]
    listed = s3_server.admin.list_objects_v2(Bucket=s3_bucket, Prefix="data/")["Contents"]
    assert [each["Key"] for each in listed if "_checkpoints" in each["Key"]] == []
