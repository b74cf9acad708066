"""The audit of dependencies, with advisories that a server on loopback has made up."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.servers.ports import free_ports

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import audit  # noqa: E402

pytestmark = pytest.mark.long  # It is uv and npm that take the time.

OSV = {
    "id": "TEST-1",
    "modified": "2026-01-01T00:00:00Z",
    "summary": "made up",
    "affected": [
        {
            "package": {"name": "msgspec", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}],
        }
    ],
}
NPM = {
    "id": 1,
    "url": "u",
    "title": "made up",
    "severity": "high",
    "vulnerable_versions": "*",
    "cwe": [],
    "cvss": {},
}


class Advisories(BaseHTTPRequestHandler):
    bad: tuple[str, ...] = ()

    def do_GET(self) -> None:
        self._say(OSV if "/vulns/" in self.path else {"name": self.path.strip("/"), "versions": {}})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "querybatch" not in self.path:
            return self._say({name: [NPM] for name in self.bad})
        named = [each["package"]["name"] for each in json.loads(body)["queries"]]
        seen = {"id": OSV["id"], "modified": OSV["modified"]}
        return self._say({"results": [{"vulns": [seen]} if name in self.bad else {} for name in named]})

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _say(self, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def advisories(*bad: str) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Some", (Advisories,), {"bad": bad}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def test_a_package_that_is_known_to_be_vulnerable_is_named() -> None:
    with advisories("msgspec") as url:
        found = audit._python("--service-url", url)
    assert found.state == audit.VULNERABLE
    assert "msgspec" in found.said
    assert "TEST-1" in found.said
    with advisories() as url:
        assert audit._python("--service-url", url).state == audit.CLEAN


def test_the_pages_packages_are_asked_about_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with advisories("preact") as url:
        monkeypatch.setenv("npm_config_registry", url)
        found = audit._page()
    assert (found.state, "preact" in found.said) == (audit.VULNERABLE, True), found


def test_that_nobody_can_be_asked_is_said_and_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = f"http://127.0.0.1:{free_ports(1)[0]}/"
    asked: list[str] = []

    def ask() -> audit.Verdict:
        asked.append("once")
        return audit._python("--service-url", gone)

    monkeypatch.setattr(audit, "KEPT", tmp_path / "kept.json")
    lock = audit.Lock("python", ROOT / "uv.lock", ask, lambda: None)
    monkeypatch.setattr(audit, "LOCKS", (lock,))
    assert audit.main() == 0
    assert "not audited" in capsys.readouterr().err
    monkeypatch.setenv("AUDIT", "required")
    assert audit.main() == 1
    assert asked == ["once"], "the answer is kept"


def test_what_is_vulnerable_fails_and_is_asked_about_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([audit.Verdict(audit.VULNERABLE, "x 1: TEST-1"), audit.Verdict(audit.CLEAN, "none known")])
    monkeypatch.setattr(audit, "KEPT", tmp_path / "kept.json")
    lock = audit.Lock("python", ROOT / "uv.lock", lambda: next(answers), lambda: None)
    monkeypatch.setattr(audit, "LOCKS", (lock,))
    assert [audit.main(), audit.main(), audit.main()] == [1, 0, 0]


def test_the_lists_name_what_is_shipped_and_not_what_tests_it(tmp_path: Path) -> None:
    for lock in audit.LOCKS:
        audit.listed(lock)
        document = json.loads(lock.sbom.read_text())
        names = {each["name"] for each in document["components"]}
        assert document["bomFormat"] == "CycloneDX"
        assert names >= ({"msgspec", "aiohttp"} if lock.name == "python" else {"preact"})
        assert not names & {"pytest", "hypothesis", "vite", "typescript"}
