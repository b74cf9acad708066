"""Files behind URLs are fetched whole, within limits, and from nowhere that only the worker can reach."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from qo.config.fetch import FetchSettings
from qo.config.settings import Settings
from qo.core.web import is_allowed
from qo.errors import AccessDenied, NotFound, Unavailable, UsageError
from qo.store import web_files
from qo.store.blocking_files import BlockingFiles
from qo.store.web_files import WebFiles

HERE = FetchSettings(networks=("127.0.0.0/8",), timeout_s=5.0)


class Pages:
    """A web server whose answers are queues by path: status, headers and body; the last one stays."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, dict[str, str], bytes]]] = {}
        self.requests: list[tuple[str, str]] = []
        pages = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                pages.requests.append((self.path, self.headers["Host"]))
                queue = pages.answers.get(self.path.partition("?")[0], [(404, {}, b"")])
                status, headers, body = queue.pop(0) if len(queue) > 1 else queue[0]
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://localhost:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pages]:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(web_files, "WAITS_S", (0.0, 0.0))
    pages = Pages()
    yield pages
    pages.server.shutdown()
    pages.server.server_close()


def test_a_file_is_fetched_from_the_host_that_was_asked_for(pages: Pages, tmp_path: Path) -> None:
    pages.answers["/a.csv"] = [(200, {}, b"x" * 3_000_000)]
    files = BlockingFiles(Settings(fetch=HERE))
    assert len(files.read(f"{pages.url}/a.csv")) == 3_000_000
    assert pages.requests == [("/a.csv", pages.url.removeprefix("http://"))]
    WebFiles(HERE).copy(f"{pages.url}/a.csv", tmp_path / "a", lambda: None)
    assert (tmp_path / "a").stat().st_size == 3_000_000


def test_a_server_that_fails_is_asked_again_and_other_answers_say_what_they_are(pages: Pages) -> None:
    files = WebFiles(HERE)
    pages.answers["/busy"] = [(503, {}, b""), (429, {}, b""), (200, {}, b"ok")]
    assert files.read(f"{pages.url}/busy") == b"ok"
    pages.answers["/cut"] = [(200, {"Content-Length": "9"}, b"half")]
    for path, error in (("/cut", Unavailable), ("/none", NotFound)):
        with pytest.raises(error):
            files.read(f"{pages.url}{path}")
    pages.answers["/private"] = [(403, {}, b"")]
    with pytest.raises(AccessDenied) as refusal:
        files.read(f"{pages.url}/private?signature=secret")
    assert "secret" not in str(refusal.value)


def test_a_file_beyond_the_limit_is_not_read_to_its_end(pages: Pages) -> None:
    pages.answers["/big"] = [(200, {}, b"x" * 2_000_000)]
    with pytest.raises(UsageError, match=r"more than 1,000 bytes.*fetch\.bytes_max"):
        WebFiles(FetchSettings(networks=("127.0.0.0/8",), bytes_max=1000)).read(f"{pages.url}/big")


def test_no_address_that_is_not_public_is_asked_unless_its_network_is_allowed(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages.answers["/a"] = [(200, {}, b"x")]
    with pytest.raises(UsageError, match=r"is not public.*fetch\.networks"):
        WebFiles(FetchSettings()).read(f"{pages.url}/a")
    assert pages.requests == []
    # A redirect leads there no more than a URL does.
    pages.answers["/away"] = [(302, {"Location": "http://127.0.0.2:1/"}, b"")]
    with pytest.raises(UsageError, match=r"127\.0\.0\.2, which is not public"):
        WebFiles(FetchSettings(networks=("127.0.0.1/32",))).read(f"{pages.url}/away")
    # The name of the host is looked up once: another answer to a second question would not be checked.
    lookups: list[str] = []
    look_up = socket.getaddrinfo

    def count(host: Any, *rest: Any, **named: Any) -> Any:
        if host == "localhost":
            lookups.append(host)
        return look_up(host, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", count)
    assert WebFiles(HERE).read(f"{pages.url}/a") == b"x"
    assert len(lookups) == 1


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "169.254.169.254", "192.168.0.1", "0.0.0.0", "100.64.0.1", "224.0.0.1", "::1",
     "fe80::1%eth0", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::"],
)  # fmt: skip
def test_an_address_that_is_not_public_is_refused_in_every_form(address: str) -> None:
    assert not is_allowed(address, ())
    assert is_allowed("93.184.215.14", ())
    assert is_allowed("2606:2800:21f:cb07:6820:80da:af6b:8b2c", ())
