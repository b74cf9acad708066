"""Known vulnerabilities of what qo depends on, and the list of what that is (SBOM).

    python audit.py          fails if something is known to be vulnerable
    AUDIT=required           fails also where nobody could be asked

Both locks are asked about: uv.lock (by `uv audit`, which asks OSV) and that of the page (by `npm audit`). Who answers
may be out of reach, as behind a mirror that has packages and nothing else: then it says so, and nothing is wrong. An
answer is good for a day, and that nobody answered for an hour; a lock that changes is asked about again.
The lists are dist/sbom.python.json and dist/sbom.page.json, in CycloneDX: what is installed with all extras, and what
is in the page. They are written anew when their lock is newer.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hatch_build import ROOT, SOURCES, npm, stale

KEPT = Path(sys.prefix) / ".audited.json"
DAY_S, HOUR_S = 24 * 3600, 3600
ASK_S = 60.0  # For a registry that takes the question and does not answer.
CLEAN, VULNERABLE, UNASKED = "clean", "vulnerable", "unasked"


@dataclass(frozen=True)
class Verdict:
    state: str
    said: str


@dataclass(frozen=True)
class Lock:
    name: str
    path: Path
    ask: Callable[[], Verdict]
    listing: Callable[[], tuple[Sequence[str], Mapping[str, str]] | None]

    @property
    def sbom(self) -> Path:
        return ROOT / "dist" / f"sbom.{self.name}.json"


def _python(*more: str) -> Verdict:
    """``more``: further options of uv."""
    uv = [str(Path(sys.executable).with_name("uv")), "audit", "--frozen", "--output-format", "json"]
    said = _run(
        [*uv, "--preview-features", "audit-command,json-output", *more], {**_project(), "UV_HTTP_RETRIES": "0"}
    )
    if said is None or said.returncode not in (0, 1):
        return Verdict(UNASKED, _first(said))
    found = [
        f"{each['dependency']['name']} {each['dependency']['version']}: {each['id']} {each['summary'] or ''}".strip()
        for each in json.loads(said.stdout)["vulnerabilities"]
    ]
    return Verdict(VULNERABLE, "\n".join(found)) if said.returncode else Verdict(CLEAN, "none known")


def _page() -> Verdict:
    called = npm()
    if called is None:
        return Verdict(UNASKED, "there is no Node")
    command, environ = called
    said = _run([*command, "audit", "--json", "--package-lock-only"], environ, cwd=SOURCES)
    try:
        found: dict[str, Any] = json.loads(said.stdout)["vulnerabilities"] if said is not None else {}
        assert said is not None
    except (ValueError, KeyError, AssertionError):
        return Verdict(UNASKED, _first(said))
    named = [f"{name}: {each['severity']}, in {each['range']}" for name, each in found.items()]
    return Verdict(VULNERABLE, "\n".join(named)) if named else Verdict(CLEAN, "none known")


def _python_listing() -> tuple[Sequence[str], Mapping[str, str]]:
    uv = [str(Path(sys.executable).with_name("uv")), "export", "--frozen", "--quiet", "--no-dev", "--all-extras"]
    return [*uv, "--format", "cyclonedx1.5", "--preview-features", "sbom-export"], _project()


def _page_listing() -> tuple[Sequence[str], Mapping[str, str]] | None:
    called = npm()
    if called is None:
        return None
    return [*called[0], "sbom", "--sbom-format", "cyclonedx", "--package-lock-only", "--omit", "dev"], called[1]


LOCKS = (
    Lock("python", ROOT / "uv.lock", _python, _python_listing),
    Lock("page", SOURCES / "package-lock.json", _page, _page_listing),
)


def audit(lock: Lock) -> Verdict:
    """What is known, asked for if the last answer is too old."""
    digest = hashlib.sha256(lock.path.read_bytes()).hexdigest()
    kept = _kept()
    if (last := kept.get(lock.name)) and last["of"] == digest and time.time() < last["until"]:
        return Verdict(last["state"], last["said"])
    verdict = lock.ask()
    if verdict.state != VULNERABLE:  # That is asked again, until it is not.
        until = time.time() + (DAY_S if verdict.state == CLEAN else HOUR_S)
        KEPT.write_text(json.dumps({**kept, lock.name: {**asdict(verdict), "of": digest, "until": until}}))
    return verdict


def listed(lock: Lock) -> None:
    """Raises CalledProcessError if the list cannot be made."""
    if not stale(lock.sbom, [lock.path]) or (called := lock.listing()) is None:
        return
    command, environ = called
    said = subprocess.run(command, cwd=lock.path.parent, env=dict(environ), check=True, capture_output=True)
    assert json.loads(said.stdout)["bomFormat"] == "CycloneDX"
    lock.sbom.parent.mkdir(exist_ok=True)
    lock.sbom.write_bytes(said.stdout)


def _project() -> dict[str, str]:
    ours = {key: value for key, value in os.environ.items() if key != "VIRTUAL_ENV"}
    return {**ours, "UV_PROJECT_ENVIRONMENT": sys.prefix, "UV_PYTHON_DOWNLOADS": "never"}


def _run(
    command: Sequence[str], environ: Mapping[str, str], cwd: Path = ROOT
) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            command,
            cwd=cwd,
            env=dict(environ),
            capture_output=True,
            text=True,
            timeout=ASK_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return None


def _first(said: subprocess.CompletedProcess[str] | None) -> str:
    """Why there was no answer, in a line; without the address that was asked."""
    lines = (
        []
        if said is None
        else [line for line in said.stderr.splitlines() if "error" in line or "warn audit" in line]
    )
    return (lines[0] if lines else "no answer").partition("http")[0].strip(" (-")


def _kept() -> dict[str, Any]:
    try:
        return json.loads(KEPT.read_text())
    except (OSError, ValueError):
        return {}


def main() -> int:
    code = 0
    for lock in LOCKS:
        listed(lock)
        verdict = audit(lock)
        if verdict.state == UNASKED:
            print(f"{lock.path.name}: not audited, nobody could be asked: {verdict.said}", file=sys.stderr)
            code |= os.environ.get("AUDIT") == "required"
        elif verdict.state == VULNERABLE:
            print(f"{lock.path.name}: known to be vulnerable:\n{verdict.said}", file=sys.stderr)
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
