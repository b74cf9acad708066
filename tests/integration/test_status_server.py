"""The worker's status over HTTP, asked by real clients: good ones, slow ones, and many at once."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection, HTTPMessage
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from qo.errors import ConfigError
from qo.http_server.pages import THREADS_MAX
from qo.worker.loop.outcome import Acked, Released, Retried
from qo.worker.loop.state import State
from qo.worker.observe.stats import Stats, StatsSnapshot, snapshot
from qo.worker.observe.status import Health, StatusServer

pytestmark = pytest.mark.fast

PATHS = ["/livez", "/metrics", "/readyz", "/stats"]


@dataclass
class Subject:
    """What the server tells about, and the server."""

    stats: Stats = field(default_factory=Stats)
    health: Health = field(default_factory=lambda: Health(State.RUNNING, 0.0, 0.0))
    meanwhile: Callable[[], None] = lambda: None  # Called in the middle of a snapshot.
    at: str = ""

    def snapshot(self) -> StatsSnapshot:
        self.meanwhile()
        return snapshot(
            self.stats, worker_id="w", state=self.health.state, uptime_s=1.5, slots=2, busy=1, waiting=0, settling=0,
            stuck=0, oldest_held_s=None, kinds={"async": 1}, paused_types=[], shards=["a"],
        )  # fmt: skip

    @contextmanager
    def served(self, address: str = "127.0.0.1:0", **options: Any) -> Iterator[StatusServer]:
        health: Callable[[], Health] = options.pop("health", lambda: self.health)
        server = StatusServer(address, snapshot=self.snapshot, stats=self.stats, health=health, **options)
        self.at = server.start()
        try:
            yield server
        finally:
            server.stop()

    def ask(self, path: str, method: str = "GET", **request: Any) -> tuple[int, bytes, HTTPMessage]:
        connection = HTTPConnection(self.at, timeout=20)
        try:
            connection.request(method, path, **request)
            reply = connection.getresponse()
            return reply.status, reply.read(), reply.headers
        finally:
            connection.close()

    def connect(self, text: bytes = b"") -> socket.socket:
        host, _, port = self.at.rpartition(":")
        client = socket.create_connection((host, int(port)), timeout=20)
        client.sendall(text)
        return client


@pytest.fixture
def subject() -> Iterator[Subject]:
    subject = Subject()
    with subject.served():
        yield subject


def test_statistics_are_told_as_json(subject: Subject):
    subject.stats.count_claim()
    subject.stats.count_run("resize", 1, 0.25, Acked())
    status, body, headers = subject.ask("/stats")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    told = msgspec.json.decode(body)
    assert (told["worker_id"], told["state"], told["uptime_s"], told["shards"]) == ("w", "running", 1.5, ["a"])
    assert (told["counts"]["claimed"], told["counts"]["held"]) == (1, 1)
    assert told["latency_s"]["resize"]["p50"] == 0.25
    assert told["workers"]["1"]["succeeded"] == 1


def test_metrics_are_told_as_prometheus_reads_them(subject: Subject):
    subject.stats.count_claim()
    status, body, headers = subject.ask("/metrics")
    assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    found = {family.name: family for family in text_string_to_metric_families(body.decode())}
    assert found["qo_worker_claims"].samples[0].value == 1
    assert found["qo_worker_state"].type == "gauge"


def test_a_worker_that_is_well_and_runs_is_live_and_ready(subject: Subject):
    assert subject.ask("/livez")[:2] == (200, b"ok\n")
    assert subject.ask("/readyz")[:2] == (200, b"ok\n")


@pytest.mark.parametrize("state", [state for state in State if state is not State.RUNNING])
def test_a_worker_that_does_not_run_says_what_it_does_instead(subject: Subject, state: State):
    subject.health = replace(subject.health, state=state)
    assert subject.ask("/readyz")[:2] == (503, f"{state.value}\n".encode())
    assert subject.ask("/livez")[0] == (503 if state is State.FAILED else 200)


def test_an_ill_worker_gives_every_reason_on_a_line(subject: Subject):
    subject.health = Health(State.RUNNING, loop_beat_s=12.0, keeper_beat_s=31.0)
    status, body, _ = subject.ask("/livez")
    assert status == 503
    assert body.decode().splitlines() == [
        "the event loop has been blocked for 12 s",
        "the lease thread has been blocked for 31 s",
    ]


@pytest.mark.parametrize("path", PATHS)
def test_a_head_request_is_answered_without_the_body(subject: Subject, path: str):
    status, body, headers = subject.ask(path, "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 0


@pytest.mark.parametrize("path", ["/", "/livez/", "/stats.json", "/../etc/passwd", "/control/pause", "*", "//"])
def test_another_path_is_told_what_there_is(subject: Subject, path: str):
    status, body, _ = subject.ask(path)
    assert status == 404
    assert body.decode().split()[-4:] == PATHS


def test_a_query_does_not_change_the_page(subject: Subject):
    assert subject.ask("/livez?verbose=1")[:2] == (200, b"ok\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
@pytest.mark.parametrize("path", ["/stats", "/nowhere"])
def test_nothing_can_be_changed(subject: Subject, method: str, path: str):
    status, _, headers = subject.ask(path, method, body=b"x" * 10_000)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_replies_say_nothing_of_versions_and_are_not_kept(subject: Subject):
    for path, method in [("/livez", "GET"), ("/nowhere", "GET"), ("/stats", "POST")]:
        headers = subject.ask(path, method)[2]
        assert (headers["Server"], headers["Cache-Control"], headers["Connection"]) == ("qo", "no-store", "close")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n\r\n", b"505"),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 70_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", b"431"),
        (b"GET /livez HTTP/1.0\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"GET /livez HTTP/1.0\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n", b"400"),
    ],
)
def test_a_malformed_request_is_answered_and_harms_nobody(subject: Subject, text: bytes, status: bytes):
    client = subject.connect()
    try:
        client.sendall(text)
        reply = client.recv(4_096)
    except ConnectionError:
        reply = b""  # It hung up on what it would not read.
    client.close()
    assert status in reply or (not reply and len(text) > 65_536)
    assert b"Python" not in reply
    assert subject.ask("/livez")[0] == 200


def test_requests_are_not_logged_where_operators_look(subject: Subject, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    for path in [*PATHS, "/nowhere"]:
        subject.ask(path)
    subject.connect(b"nonsense\r\n\r\n").close()
    assert subject.ask("/livez")[0] == 200
    assert caplog.records == []


def test_a_page_that_breaks_is_an_error_of_that_page_only(subject: Subject, caplog: pytest.LogCaptureFixture):
    def broken() -> None:
        raise ValueError("broken")

    subject.meanwhile = broken
    assert subject.ask("/stats")[0] == 500
    assert subject.ask("/metrics")[0] == 500
    assert subject.ask("/livez")[0] == 200
    assert "cannot answer '/stats'" in caplog.text


def test_a_look_in_the_middle_of_a_step_is_repeated(subject: Subject):
    looks = iter(range(100))

    def step() -> None:
        match next(looks):
            case 0:
                raise RuntimeError("dictionary changed size during iteration")
            case 1:
                subject.stats.claimed += 1  # The step has begun,
            case _:
                subject.stats.held = 1  # and is done.

    subject.meanwhile = step
    counts = msgspec.json.decode(subject.ask("/stats")[1])["counts"]
    assert (counts["claimed"], counts["held"]) == (1, 1)


def test_counts_that_stay_wrong_are_shown(subject: Subject):
    subject.stats.claimed = 5
    assert msgspec.json.decode(subject.ask("/stats")[1])["counts"]["claimed"] == 5


def test_a_blocked_event_loop_is_seen_and_its_recovery_too():
    now = [1_000.0]  # A clock that only the test moves.
    beat = [now[0]]
    turned, blocked, release, done = (threading.Event() for _ in range(4))

    async def turn() -> None:
        while not done.is_set():
            beat[0] = now[0]
            turned.set()
            await asyncio.sleep(0.001)

    def block() -> None:  # What an async handler must not do.
        blocked.set()
        release.wait()

    def health() -> Health:
        return Health(State.RUNNING, now[0] - beat[0], 0.0)

    subject, loop = Subject(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(turn(),), daemon=True)
    thread.start()
    with subject.served(health=health):
        assert turned.wait(20)
        assert subject.ask("/livez")[0] == 200
        loop.call_soon_threadsafe(block)
        assert blocked.wait(20)
        now[0] += 11
        assert subject.ask("/stats")[0] == 200
        assert subject.ask("/livez")[:2] == (503, b"the event loop has been blocked for 11 s\n")
        turned.clear()
        release.set()
        assert turned.wait(20)
        assert subject.ask("/livez")[0] == 200
    done.set()
    thread.join(20)
    loop.close()


def test_slow_clients_do_not_keep_others_from_their_answer(subject: Subject):
    with ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(subject.connect(b"GET /livez HTTP/1.1\r\nX-Slow: "))
        assert [subject.ask(path)[0] for path in PATHS * 3] == [200] * 12
        serving = [each for each in threading.enumerate() if each.name == "qo-page"]
        assert len(serving) <= THREADS_MAX


def test_clients_that_do_not_read_their_answer_do_not_keep_others_from_theirs(subject: Subject):
    for n in range(200):
        subject.stats.count_run(f"{n:0200}", 0, 0.1, Acked())
    with ExitStack() as stack:
        for _ in range(20):
            client = socket.socket()
            stack.enter_context(client)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            host, _, port = subject.at.rpartition(":")
            client.connect((host, int(port)))
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert subject.ask("/livez")[0] == 200
        assert subject.ask("/metrics")[0] == 200


@pytest.mark.parametrize(
    "text", [b"", b"GET /livez HTTP/1.1\r\n", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n"]
)
def test_a_client_that_says_nothing_is_hung_up_on(text: bytes):
    subject = Subject()
    with subject.served(client_timeout_s=0.2), subject.connect(text) as client:
        assert client.recv(1) == b""


def test_a_client_that_trickles_is_hung_up_on():
    subject = Subject()
    with subject.served(client_timeout_s=0.3), subject.connect(b"GET /livez HTTP/1.1\r\nX: ") as client:
        client.settimeout(0.02)
        for _ in range(500):  # Each byte comes well within the socket's timeout.
            try:
                client.sendall(b"x")
                if client.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("it was listened to for ten seconds")


def test_beyond_the_threads_there_are_requests_are_refused():
    subject = Subject()
    begun, release = threading.Semaphore(0), threading.Event()

    def hang() -> None:
        begun.release()
        release.wait(60)

    subject.meanwhile = hang
    with subject.served(), ThreadPoolExecutor(THREADS_MAX) as pool:
        hanging = [pool.submit(subject.ask, "/stats") for _ in range(THREADS_MAX)]
        for _ in hanging:
            assert begun.acquire(timeout=20)
        try:
            status, body, headers = subject.ask("/livez")
            assert (status, body) == (503, b"too many requests at a time\n")
            assert headers["Server"] == "qo"
        finally:
            release.set()
        assert [each.result()[0] for each in hanging] == [200] * THREADS_MAX
        assert subject.ask("/livez")[0] == 200


def test_many_scrapes_at_once_while_the_worker_counts_are_all_whole(subject: Subject):
    done = threading.Event()

    def count() -> None:
        outcomes = [Acked(), Retried("e"), Released("r")]
        n = 0
        while not done.is_set():
            n += 1
            subject.stats.count_claim()
            subject.stats.count_run(f"type-{n % 300}", n % 8, 0.01, outcomes[n % 3])
            subject.stats.count_outcome(outcomes[n % 3])

    counting = threading.Thread(target=count)
    counting.start()
    try:
        with ThreadPoolExecutor(8) as pool:
            replies = list(pool.map(subject.ask, PATHS * 10))
    finally:
        done.set()
        counting.join()
    assert {status for status, _, _ in replies} == {200}
    for _, body, headers in replies:
        if headers["Content-Type"].startswith("text/plain; version"):
            found = {family.name: family.samples for family in text_string_to_metric_families(body.decode())}
            outcomes = sum(sample.value for sample in found["qo_worker_outcomes"])
            held = found["qo_worker_held"][0].value
            assert found["qo_worker_claims"][0].value == pytest.approx(outcomes + held, abs=1)


def test_stopping_frees_the_port_and_hangs_up():
    subject = Subject()
    with subject.served() as server:
        first = subject.at
        waiting = subject.connect(b"GET ")
        server.stop()
        assert waiting.recv(1) == b""
        waiting.close()
        with pytest.raises(ConnectionRefusedError):
            subject.ask("/livez")
        server.stop()  # Once more does no harm.
        with subject.served(first):
            assert subject.at == first
            assert subject.ask("/livez")[0] == 200


def test_an_address_in_use_is_named(subject: Subject):
    with pytest.raises(ConfigError, match=rf"{subject.at}.*something else listens there.*worker\.http"):
        Subject().served(subject.at).__enter__()
    assert subject.ask("/livez")[0] == 200


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "1.2.3.4:0", "a..b:0", ":-1"]
)
def test_an_address_that_is_none_is_a_wrong_setting(address: str):
    with pytest.raises(ConfigError, match="cannot serve the worker's status at"):
        Subject().served(address).__enter__()


@pytest.mark.parametrize("address", [":0", "0", "127.0.0.1:0"])
def test_without_a_host_only_this_machine_is_served(address: str):
    subject = Subject()
    with subject.served(address):
        assert subject.at.startswith("127.0.0.1:")
        assert subject.ask("/livez")[0] == 200


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_an_address_of_the_sixth_version_is_given_in_brackets():
    subject = Subject()
    try:
        serving = subject.served("[::1]:0")
        with serving:
            assert subject.at.startswith("[::1]:")
            assert subject.ask("/livez")[0] == 200
    except ConfigError as error:
        pytest.skip(str(error))
