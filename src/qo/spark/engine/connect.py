"""Clients of a Spark Connect server. An attempt's session has an id that follows from the attempt, so that a later
attempt can shut out an earlier one that is still at it, wherever that runs."""

# The client's own parts have no types.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import grpc
from pyspark.sql import SparkSession
from pyspark.sql.connect.client import DefaultChannelBuilder, SparkConnectClient
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession as RemoteSession

from qo.config.spark import OWN_SERVER, SparkSettings
from qo.errors import ConfigError, LeaseLost
from qo.spark.engine.cluster_watch import Driver, Observation
from qo.spark.engine.endpoint import PROBE_S, Reach, address_text, master_endpoints, probe_any
from qo.spark.engine.engine import Attempt, ClusterAway, Loss, Progress
from qo.spark.engine.master import cores
from qo.spark.engine.progress import Reports
from qo.spark.engine.server import ConnectServer, reachable
from qo.spark.patches import private_state

if TYPE_CHECKING:
    from pyspark.sql.connect.shell.progress import ProgressHandler

log = logging.getLogger(__name__)

PORT = 15002
USER = "qo"  # A session is known by its user too: the same one for all workers.
EARLIER_MAX = 5  # Those before have long ended, or have been shut out by the ones between.
# Left to itself, a client tries for ten minutes to reach a server that is gone. A server of the worker's own does not
# come back with what it knew; another may have been out of reach for a moment: up to a minute.
GONE_RETRIES, AWAY_RETRIES, BACKOFF_MAX_MS = 4, 10, 10_000
# What a server of somebody else's may see differently.
TOLD = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


@dataclass(frozen=True, slots=True)
class _Open:
    session: SparkSession
    reports: Reports = field(default_factory=Reports)


class ConnectEngine:
    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._server = ConnectServer(settings) if settings.remote == OWN_SERVER else None
        # What must answer before there can be a session: the server, or the master of a server of our own.
        self._endpoints = (
            (_place(settings.remote or ""),) if self._server is None else master_endpoints(settings.master)
        )
        self._open: dict[Attempt, _Open] = {}
        self._entering: set[Attempt] = set()  # They ask the server for a session.
        self._number = 0  # Of the session that is watched: all that is under way, until nothing is.
        self._lock = threading.Lock()
        # Functions of PySpark ask for this when they are called, and operators may call some while they are loaded.
        os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"

    def start(self) -> None:
        with self._lock:
            if self._server is not None and self._server.alive():
                return
            if self._endpoints and probe_any(self._endpoints) is not Reach.OPEN:
                what = "Connect server" if self._server is None else "master"
                raise ClusterAway(f"the Spark {what} at {address_text(self._endpoints)} does not answer")
            if self._server is not None:
                self._server.start()
                self._number += 1

    @property
    def _address(self) -> str:
        return self._server.address if self._server is not None else self._settings.remote or ""

    @contextlib.contextmanager
    def session(self, attempt: Attempt, *, lasting: bool = False) -> Generator[SparkSession]:
        """Raises LeaseLost if a later attempt has shut this one out."""
        self.start()
        self._entering.add(attempt)
        try:
            for earlier in attempt.earlier[-EARLIER_MAX:]:
                self._shut_out(earlier)
            opened = _Open(self._created(attempt))
        finally:
            self._entering.discard(attempt)
        opened.session.registerProgressHandler(cast("ProgressHandler", opened.reports))
        self._open[attempt] = opened
        try:
            yield opened.session
        finally:
            if self._open.get(attempt) is opened:
                del self._open[attempt]
            if self._server is None and not self._open:
                self._number += 1
            opened.session.stop()

    def _created(self, attempt: Attempt) -> SparkSession:
        told: dict[str, str | int | bool] = {
            **TOLD,
            **{key: value for key, value in self._settings.conf if _of_session(key)},
        }
        made = RemoteSession(connection=self._url(attempt))
        self._be_brief(made.client)
        # Functions that are not told a session take the thread's, which may be left over from one that has ended.
        private_state.set_session_of_thread(made)
        try:
            made.conf._set_all(configs=told, silent=True)  # The server refuses a session that was closed.
            made.addTag(attempt.tag)
        except BaseException as error:
            made.stop()
            if _closed(error):
                raise LeaseLost(f"{attempt.tag} was shut out of Spark by a later attempt") from error
            raise
        return cast(SparkSession, made)

    def stop(self, attempt: Attempt) -> None:
        opened = self._open.get(attempt)
        if opened is None:
            self._shut_out(attempt)
            return
        if not self._answers():
            _cut_off(opened.session)
            return
        with contextlib.suppress(Exception):
            opened.session.interruptAll()
        with contextlib.suppress(Exception):
            opened.session.client.release_session()

    def _shut_out(self, attempt: Attempt) -> None:
        """End what the attempt runs, and have the server refuse it from now on. What fails here is not missed: an
        attempt that lost its lease cannot commit, shut out or not."""
        if not self.alive():
            return
        client = SparkConnectClient(self._url(attempt))
        self._be_brief(client)
        try:
            # A server remembers only the end of a session that it has seen.
            client.get_configs("spark.sql.session.timeZone")
            client.interrupt_all()
            client.release_session()
        except Exception as error:
            if not _closed(error):
                log.warning("could not shut out %s: %s", attempt.tag, error)
        finally:
            client.close()

    def _be_brief(self, client: SparkConnectClient) -> None:
        tries = AWAY_RETRIES if self._server is None else GONE_RETRIES
        client.set_retry_policies([DefaultPolicy(max_retries=tries, max_backoff=BACKOFF_MAX_MS)])

    def progress(self, attempt: Attempt) -> Progress | None:
        opened = self._open.get(attempt)
        return None if opened is None else opened.reports.read()

    def alive(self) -> bool:
        return self._server.alive() if self._server is not None else reachable(*_place(self._address))

    @property
    def has_cluster(self) -> bool:
        return self._server is None or cores(self._settings.master) is None

    @property
    def cluster_name(self) -> str:
        return f"Connect at {address_text(self._endpoints)}" if self._server is None else self._settings.master

    @property
    def scales_to_zero(self) -> bool:
        return False  # Nor is it known how many executors there are.

    def observe(self) -> Observation | None:
        opened, number = list(self._open.values()), self._number
        if self._server is None and not opened and not self._entering:
            return Observation(time.monotonic(), session=number)  # Nobody is there who could miss it.
        endpoint = probe_any(self._endpoints)
        waiting = sum(each.reports.outstanding() > 0 for each in opened)
        running = sum(each.reports.read().active for each in opened)
        if self._server is not None:
            if not self._server.address:
                return None
            driver = Driver.ALIVE if self._server.alive() else Driver.DEAD
            executors = 0 if waiting and not running else None  # Nobody else could be using them.
            return Observation(time.monotonic(), endpoint, executors, waiting, running, driver, number)
        if endpoint is Reach.OPEN and not running:
            endpoint = self._greet()  # A server that hangs is connected to all the same.
        if endpoint is Reach.OPEN:
            return Observation(time.monotonic(), endpoint, None, waiting, running, session=number)
        # What it reported last says nothing of now.
        return Observation(time.monotonic(), endpoint, 0, len(opened) + len(self._entering), session=number)

    def reach(self) -> Reach:
        found = probe_any(self._endpoints)
        return self._greet() if found is Reach.OPEN and self._server is None else found

    def _answers(self) -> bool:
        return self._greet() is Reach.OPEN if self._server is None and self.alive() else self.alive()

    def _greet(self) -> Reach:
        """Whether the server speaks gRPC, in time."""
        channel = DefaultChannelBuilder(self._address).toChannel()
        try:
            grpc.channel_ready_future(channel).result(timeout=PROBE_S)
        except grpc.FutureTimeoutError:
            return Reach.SILENT
        finally:
            channel.close()
        return Reach.OPEN

    def abandon(self) -> None:
        """A server of our own. One of somebody else's is theirs to end; sessions in it are the attempts' own."""
        opened = list(self._open.values())
        if opened and not self._answers():
            for each in opened:
                _cut_off(each.session)
        with self._lock:
            if self._server is not None:
                self._server.close()

    def ui(self) -> str | None:
        return None  # The server's: a client is not told.

    def loss(self, attempt: Attempt) -> Loss | None:
        if self.alive():
            return None  # Errors of an earlier server say so themselves.
        if self._server is None:
            return Loss("its Connect server is gone", by_cluster=True)
        return Loss(self._server.exit_reason())

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def _url(self, attempt: Attempt) -> str:
        return with_parameters(self._address, user_id=USER, session_id=attempt.session_id)


def with_parameters(address: str, **parameters: str) -> str:
    """The address of a server with more said about the session. What the address says itself stays."""
    base, _, given = address.partition("/;")
    named = {each.partition("=")[0] for each in given.split(";") if each}
    more = [f"{key}={value}" for key, value in parameters.items() if key not in named]
    return f"{base.rstrip('/')}/;{';'.join([*filter(None, given.split(';')), *more])}"


def _place(address: str) -> tuple[str, int]:
    parts = urlsplit(address)
    if parts.scheme != "sc" or not parts.hostname:
        raise ConfigError(
            f"spark.remote must be sc://HOST:PORT or {OWN_SERVER}, not {address.partition('/;')[0]!r}"
        )
    return parts.hostname, parts.port or PORT


def _cut_off(session: SparkSession) -> None:
    """Of a server that is gone: who waits for its answer, at most for a minute, is told at once."""
    private_state.disconnect(cast(RemoteSession, session).client)


def _of_session(key: str) -> bool:
    return key.startswith("spark.sql.")


def _closed(error: BaseException) -> bool:
    return "SESSION_CLOSED" in str(error)
