"""A real broker of Kafka on loopback: one node that keeps its own metadata, in a JVM that this process talks to.

The same JVM has a client, by which tests make topics and records. It ends when this process does, because its input
ends then.
"""

# Java, through py4j, has no types.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError

from qo.config.spark import SparkSettings
from qo.spark.engine import java
from support.servers.maven import SPARK_JARS, NotFetched, fetch_jars
from support.servers.ports import free_ports

BROKER = "org.apache.kafka:kafka_2.13:4.1.1"
READER = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
# The last reader that some copies of Maven Central have, part by part: they lack one of its parts in that version.
OLDER_READER = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
USER, PASSWORD = "reader", 'hunter "2" \\x'

_CLUSTER = "qoqoqoqoqoqoqoqoqoqoqg"
_BYTES = "org.apache.kafka.common.serialization.ByteArraySerializer"
_numbers = itertools.count(1)


def reader_jars() -> list[Path]:
    """The jars of Spark's reader for Kafka. Raises NotFetched."""
    try:
        return fetch_jars(READER)
    except NotFetched:
        return [jar for each in OLDER_READER for jar in fetch_jars(each, alone=True)]


class KafkaBroker:
    """``servers`` lets everybody in, ``login_servers`` the user above."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = free_ports(3)
        self.servers, self.login_servers = (f"127.0.0.1:{port}" for port in self._ports[:2])
        self._process: subprocess.Popen[bytes]
        self._gateway: Any
        self._server: Any
        self._admin: Any
        self._producer: Any

    def start(self) -> None:
        """Start it, or start it again on what it had stored."""
        jars = [*fetch_jars(BROKER), *SPARK_JARS.glob("py4j-*.jar")]
        command = [str(java.find(SparkSettings(), os.environ).command), "-Xmx256m", "-XX:TieredStopAtLevel=1"]
        command += ["-XX:+UseSerialGC", "-cp", os.pathsep.join(map(str, jars)), "py4j.GatewayServer"]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--die-on-broken-pipe", "--enable-auth", "0"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._directory,
            )
        assert self._process.stdout is not None
        port, token = (self._process.stdout.readline().decode().strip() for _ in range(2))
        # Without it, objects that are collected after the JVM's end would still be reported to it.
        unmanaged = GatewayParameters(port=int(port), auth_token=token, enable_memory_management=False)
        self._gateway = JavaGateway(gateway_parameters=unmanaged)
        kafka = self._gateway.jvm.kafka.server
        properties = self._properties(self._settings())
        self._format()
        self._server = kafka.KafkaRaftServer(
            kafka.KafkaConfig.fromProps(properties), self._gateway.jvm.org.apache.kafka.common.utils.Time.SYSTEM
        )
        self._server.startup()
        clients = self._gateway.jvm.org.apache.kafka.clients
        self._admin = clients.admin.Admin.create(self._properties({"bootstrap.servers": self.servers}))
        # One record at a time, and each asked for: on a busy machine, a record of a producer that keeps count of its
        # records has been held back for good after the broker's start.
        plain = {"enable.idempotence": "false", "max.in.flight.requests.per.connection": "1", "linger.ms": "0"}
        self._producer = clients.producer.KafkaProducer(self._properties(self._producer_settings() | plain))

    def stop(self) -> None:
        """At once: what it had in hand is given up."""
        with suppress(Py4JError, OSError):
            self._gateway.close()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def make_topic(self, partitions: int = 1, name: str | None = None) -> str:
        name = name or f"topic-{next(_numbers)}"
        new = self._gateway.jvm.org.apache.kafka.clients.admin.NewTopic(name, partitions, 1)
        self._admin.createTopics(self._list([new])).all().get()
        return name

    def delete_topic(self, name: str) -> None:
        self._admin.deleteTopics(self._list([name])).all().get()

    def send(self, topic: str, *values: str | bytes | None, key: bytes | None = None, partition: int = 0) -> None:
        """Returns when all are stored."""
        for each in values:
            self._producer.send(self._record(topic, each, key, partition)).get()

    def send_at(self, topic: str, unix_ms: int, value: str) -> None:
        record = self._gateway.jvm.org.apache.kafka.clients.producer.ProducerRecord
        self._producer.send(record(topic, 0, unix_ms, None, value.encode())).get()

    @contextmanager
    def transaction(self, topic: str, *values: str, commit: bool = True) -> Iterator[None]:
        """Values that are stored at once, and visible at the end, or never."""
        settings = self._producer_settings() | {"transactional.id": f"transaction-{next(_numbers)}"}
        producer = self._gateway.jvm.org.apache.kafka.clients.producer.KafkaProducer(self._properties(settings))
        producer.initTransactions()
        producer.beginTransaction()
        for each in values:
            producer.send(self._record(topic, each, None, 0)).get()
        yield
        if commit:
            producer.commitTransaction()
        else:
            producer.abortTransaction()
        producer.close()

    def expire(self, topic: str, before: int, partition: int = 0) -> None:
        """Remove the oldest records of a partition, as its retention does after some days."""
        jvm = self._gateway.jvm
        wanted = jvm.java.util.HashMap()
        place = jvm.org.apache.kafka.common.TopicPartition(topic, partition)
        wanted.put(place, self._before_offset(before))
        self._admin.deleteRecords(wanted).all().get()

    def _before_offset(self, offset: int) -> Any:
        """As the static method of that name makes it. py4j finds the getter of the same name instead."""
        jvm, new_array = self._gateway.jvm, self._gateway.new_array
        types, values = new_array(jvm.java.lang.Class, 1), new_array(jvm.java.lang.Object, 1)
        types[0], values[0] = jvm.java.lang.Long.TYPE, offset
        owner = jvm.java.lang.Class.forName("org.apache.kafka.clients.admin.RecordsToDelete")
        return owner.getMethod("beforeOffset", types).invoke(None, values)

    def _record(self, topic: str, value: str | bytes | None, key: bytes | None, partition: int) -> Any:
        body = value.encode() if isinstance(value, str) else value
        return self._gateway.jvm.org.apache.kafka.clients.producer.ProducerRecord(topic, partition, key, body)

    def _format(self) -> None:
        """Set up the directory of a new broker."""
        if (self._directory / "data" / "meta.properties").exists():
            return
        settings = self._directory / "server.properties"
        escaped = {name: value.replace("\\", "\\\\") for name, value in self._settings().items()}
        settings.write_text("".join(f"{name}={value}\n" for name, value in escaped.items()))
        words = ["format", "-t", _CLUSTER, "-c", str(settings)]
        array = self._gateway.new_array(self._gateway.jvm.java.lang.String, len(words))
        for at, word in enumerate(words):
            array[at] = word
        out = self._gateway.jvm.java.lang.System.err
        assert self._gateway.jvm.kafka.tools.StorageTool.execute(array, out) == 0

    def _settings(self) -> dict[str, str]:
        controller = f"127.0.0.1:{self._ports[2]}"
        listeners = f"OPEN://{self.servers},LOGIN://{self.login_servers}"
        user, password = (each.replace("\\", "\\\\").replace('"', '\\"') for each in (USER, PASSWORD))
        login = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"{listeners},CONTROLLER://{controller}",
            "advertised.listeners": listeners,
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "OPEN",
            "listener.security.protocol.map": "OPEN:PLAINTEXT,LOGIN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.login.plain.sasl.jaas.config": f'{login} required user_{user}="{password}";',
            "log.dirs": str(self._directory / "data"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "auto.create.topics.enable": "false",
            "log.cleaner.enable": "false",
            "log.retention.ms": "-1",  # Some records of tests are older than the week that is kept by default.
        }

    def _producer_settings(self) -> dict[str, str]:
        return {"bootstrap.servers": self.servers, "key.serializer": _BYTES, "value.serializer": _BYTES}

    def _properties(self, values: dict[str, str]) -> Any:
        properties = self._gateway.jvm.java.util.Properties()
        for name, value in values.items():
            properties.setProperty(name, value)
        return properties

    def _list(self, values: Sequence[Any]) -> Any:
        made = self._gateway.jvm.java.util.ArrayList()
        for each in values:
            made.add(each)
        return made


def start_kafka(directory: Path) -> KafkaBroker:
    """A broker with a directory of its own. Skips the test where its jars cannot be had."""
    try:
        fetch_jars(BROKER)
        reader_jars()
    except NotFetched as error:
        pytest.skip(str(error))
    broker = KafkaBroker(directory)
    broker.start()
    return broker
