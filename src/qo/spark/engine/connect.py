"""The engine whose sessions are clients of a Spark Connect server.

The id of a session follows from its attempt, so that a later attempt can shut out an earlier one that still runs,
wherever that is.
"""

# Parts of the client have no types.
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
from qo.spark.engine.connect_server import ConnectServer, reachable
from qo.spark.engine.endpoint import PROBE_S, Reach, address_text, master_endpoints, probe_any
from qo.spark.engine.engine import Attempt, ClusterAway, Loss, Progress
from qo.spark.engine.master import local_cores
from qo.spark.engine.progress import Reports
from qo.spark.patches import private_state

if TYPE_CHECKING:
    from pyspark.sql.connect.shell.progress import ProgressHandler

log = logging.getLogger(__name__)

PORT = 15002
USER = "qo"  # The user is part of a session's identity: the same one for all workers.
EARLIER_MAX = 5  # Attempts before these have ended, or were shut out by the ones between.
# By default a client tries for ten minutes to reach a server. The worker's own server never comes back with the same
# session; another server may be unreachable for a moment: up to a minute.
OWN_RETRIES, OTHER_RETRIES, BACKOFF_MAX_MS = 4, 10, 10_000
# Settings that another server may have set differently.
SESSION_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


@dataclass(frozen=True, slots=True)
class _OpenSession:
    session: SparkSession
    reports: Reports = field(default_factory=Reports)


class ConnectEngine:
    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings
        self._server = ConnectServer(settings) if settings.remote == OWN_SERVER else None
        # What must answer before there can be a session: the server, or the master of the worker's own server.
        self._endpoints = (
            (_endpoint(settings.remote or ""),) if self._server is None else master_endpoints(settings.master)
        )
        self._open: dict[Attempt, _OpenSession] = {}
        self._entering: set[Attempt] = set()  # Attempts that wait for the server to open their session.
        self._number = (
            0  # Of the session in observations; all attempts in flight count as one, until none is left.
        )
        self._lock = threading.Lock()
        # Functions of PySpark read this when they are called, and operators may call some at import.
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
            entry = _OpenSession(self._create_session(attempt))
        finally:
            self._entering.discard(attempt)
        entry.session.registerProgressHandler(cast("ProgressHandler", entry.reports))
        self._open[attempt] = entry
        try:
            yield entry.session
        finally:
            if self._open.get(attempt) is entry:
                del self._open[attempt]
            if self._server is None and not self._open:
                self._number += 1
            entry.session.stop()

    def _create_session(self, attempt: Attempt) -> SparkSession:
        conf: dict[str, str | int | bool] = {
            **SESSION_CONF,
            **{key: value for key, value in self._settings.conf if _is_session_key(key)},
        }
        session = RemoteSession(connection=self._url(attempt))
        self._limit_retries(session.client)
        private_state.set_session_of_thread(session)
        try:
            session.conf._set_all(configs=conf, silent=True)  # The server refuses a session that was closed.
            session.addTag(attempt.tag)
        except BaseException as error:
            session.stop()
            if _is_closed(error):
                raise LeaseLost(f"{attempt.tag} was shut out of Spark by a later attempt") from error
            raise
        return cast(SparkSession, session)

    def stop(self, attempt: Attempt) -> None:
        entry = self._open.get(attempt)
        if entry is None:
            self._shut_out(attempt)
            return
        if not self._answers():
            _cut_off(entry.session)
            return
        with contextlib.suppress(Exception):
            entry.session.interruptAll()
        with contextlib.suppress(Exception):
            entry.session.client.release_session()

    def _shut_out(self, attempt: Attempt) -> None:
        """End what the attempt runs, and have the server refuse it from now on.

        Failures are only logged: an attempt that lost its lease cannot commit anyway.
        """
        if not self.alive():
            return
        client = SparkConnectClient(self._url(attempt))
        self._limit_retries(client)
        try:
            # A server remembers only the end of a session that it has seen, so show it one.
            client.get_configs("spark.sql.session.timeZone")
            client.interrupt_all()
            client.release_session()
        except Exception as error:
            if not _is_closed(error):
                log.warning("could not shut out %s: %s", attempt.tag, error)
        finally:
            client.close()

    def _limit_retries(self, client: SparkConnectClient) -> None:
        tries = OTHER_RETRIES if self._server is None else OWN_RETRIES
        client.set_retry_policies([DefaultPolicy(max_retries=tries, max_backoff=BACKOFF_MAX_MS)])

    def progress(self, attempt: Attempt) -> Progress | None:
        entry = self._open.get(attempt)
        return None if entry is None else entry.reports.read()

    def alive(self) -> bool:
        return self._server.alive() if self._server is not None else reachable(*_endpoint(self._address))

    @property
    def has_cluster(self) -> bool:
        return self._server is None or local_cores(self._settings.master) is None

    @property
    def cluster_name(self) -> str:
        return f"Connect at {address_text(self._endpoints)}" if self._server is None else self._settings.master

    @property
    def scales_to_zero(self) -> bool:
        return False  # The number of executors is not known either.

    def observe(self) -> Observation | None:
        open_sessions, number = list(self._open.values()), self._number
        if self._server is None and not open_sessions and not self._entering:
            return Observation(time.monotonic(), session=number)  # No attempt needs the server.
        endpoint = probe_any(self._endpoints)
        waiting = sum(each.reports.outstanding() > 0 for each in open_sessions)
        running = sum(each.reports.read().active for each in open_sessions)
        if self._server is not None:
            if not self._server.address:
                return None
            driver = Driver.ALIVE if self._server.alive() else Driver.DEAD
            executors = 0 if waiting and not running else None  # The server is ours: nobody else has them.
            return Observation(time.monotonic(), endpoint, executors, waiting, running, driver, number)
        if endpoint is Reach.OPEN and not running:
            endpoint = self._greet()  # A server that hangs accepts connections all the same.
        if endpoint is Reach.OPEN:
            return Observation(time.monotonic(), endpoint, None, waiting, running, session=number)
        # Its last report says nothing about now.
        return Observation(time.monotonic(), endpoint, 0, len(open_sessions) + len(self._entering), session=number)

    def reach(self) -> Reach:
        reach = probe_any(self._endpoints)
        return self._greet() if reach is Reach.OPEN and self._server is None else reach

    def _answers(self) -> bool:
        return self._greet() is Reach.OPEN if self._server is None and self.alive() else self.alive()

    def _greet(self) -> Reach:
        """Return whether the server answers in gRPC, within ``PROBE_S``."""
        channel = DefaultChannelBuilder(self._address).toChannel()
        try:
            grpc.channel_ready_future(channel).result(timeout=PROBE_S)
        except grpc.FutureTimeoutError:
            return Reach.SILENT
        finally:
            channel.close()
        return Reach.OPEN

    def abandon(self) -> None:
        """End the worker's own server. Another server is not ours to end; attempts close their sessions in it."""
        open_sessions = list(self._open.values())
        if open_sessions and not self._answers():
            for each in open_sessions:
                _cut_off(each.session)
        with self._lock:
            if self._server is not None:
                self._server.close()

    def ui(self) -> str | None:
        return None  # Only the server knows it.

    def loss(self, attempt: Attempt) -> Loss | None:
        if self.alive():
            return None  # An error of an earlier server says so itself.
        if self._server is None:
            return Loss("its Connect server is gone", by_cluster=True)
        return Loss(self._server.exit_reason())

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    def _url(self, attempt: Attempt) -> str:
        return with_parameters(self._address, user_id=USER, session_id=attempt.session_id)


def with_parameters(address: str, **parameters: str) -> str:
    """Return the address of a server with further parameters. Those that the address has already stay."""
    base, _, own = address.partition("/;")
    names = {each.partition("=")[0] for each in own.split(";") if each}
    more = [f"{key}={value}" for key, value in parameters.items() if key not in names]
    return f"{base.rstrip('/')}/;{';'.join([*filter(None, own.split(';')), *more])}"


def _endpoint(address: str) -> tuple[str, int]:
    parts = urlsplit(address)
    if parts.scheme != "sc" or not parts.hostname:
        raise ConfigError(
            f"spark.remote must be sc://HOST:PORT or {OWN_SERVER}, not {address.partition('/;')[0]!r}"
        )
    return parts.hostname, parts.port or PORT


def _cut_off(session: SparkSession) -> None:
    """Make calls to a server that is gone fail now, instead of after up to a minute."""
    private_state.disconnect(cast(RemoteSession, session).client)


def _is_session_key(key: str) -> bool:
    return key.startswith("spark.sql.")


def _is_closed(error: BaseException) -> bool:
    return "SESSION_CLOSED" in str(error)
