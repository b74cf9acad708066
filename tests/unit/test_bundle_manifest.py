"""Manifests of bundles: what is taken, and every way in which one is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.core.pipeline import bundle
from qo.core.pipeline.bundle import Entry, check_entries, check_path, parse
from qo.errors import UsageError
from support.dispatcher.zips import MAIN, manifest_of

pytestmark = pytest.mark.fast

SOUND = {MAIN: b"print('{}')", "lib/a.py": b""}


def encoded(**changed: Any) -> bytes:
    return json.dumps(manifest_of(SOUND, **changed)).encode()


def entries() -> list[Entry]:
    return [Entry(path, len(content), plain=True) for path, content in SOUND.items()]


def file(**changed: Any) -> dict[str, Any]:
    return manifest_of({MAIN: b""})["files"][0] | changed


def test_a_sound_manifest_is_read() -> None:
    manifest = parse(encoded(env_allowlist=["TZ", "API_BASE"]))
    assert (manifest.runtime, manifest.entrypoint, len(manifest.files)) == ("python", MAIN, 2)
    check_entries(manifest, [*entries(), Entry(bundle.MANIFEST, 10, plain=True)])


@pytest.mark.parametrize(
    "changed",
    [
        {"schema_version": 2},
        {"schema_version": "1"},
        {"runtime": "bash"},
        {"entrypoint": "other.py"},
        {"entrypoint": ""},
        {"entrypoint": "../main.py"},
        {"files": []},
        {"files": {}},
        {"files": [file(), file()]},
        {"files": [file(), file(path="MAIN.py")]},
        {"files": [file(), file(path="main.py/below.py")]},
        {"files": [file(), file(path=bundle.MANIFEST)]},
        {"files": [file(sha256="0" * 63)]},
        {"files": [file(sha256="A" * 64)]},
        {"files": [file(bytes=-1)]},
        {"files": [file(bytes=bundle.FILE_BYTES_MAX + 1)]},
        {"files": [file(bytes=1.5)]},
        {"files": [file(mode="755")]},
        {"files": [file(), *(file(path=f"f{n}") for n in range(bundle.FILES_MAX))]},
        {"files": [file(), *(file(path=f"f{n}", bytes=bundle.FILE_BYTES_MAX) for n in range(9))]},
        {"hooks": []},
        {"env_allowlist": ["PATH"]},
        {"env_allowlist": ["LD_PRELOAD"]},
        {"env_allowlist": ["PYTHONPATH"]},
        {"env_allowlist": ["NODE_OPTIONS"]},
        {"env_allowlist": ["AWS_SECRET_ACCESS_KEY"]},
        {"env_allowlist": ["QO_WORKER_TOKEN"]},
        {"env_allowlist": ["lower"]},
        {"env_allowlist": ["A=B"]},
        {"env_allowlist": ["A\0"]},
        {"env_allowlist": [f"V{n}" for n in range(51)]},
    ],
)
def test_a_manifest_that_breaks_a_rule_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        parse(encoded(**changed))


@pytest.mark.parametrize("document", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 60_000, b" " * 70_000 + b"{}"])
def test_what_is_no_manifest_is_refused(document: bytes) -> None:
    with pytest.raises(UsageError):
        parse(document)


@pytest.mark.parametrize(
    "path",
    [
        "", "/", "/etc/passwd", "..", "../a", "a/../b", "a/..", ".", "./a", "a/.", "a//b", "a/", "//a",
        "a\\b", "..\\a", "C:/a", "C:a", "a\0b", "a\nb", "a\x7f", "a\u2028b", "\u202egpj.py",
        "x" * 401, "a/" + "x" * 201,
    ],
)  # fmt: skip
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(UsageError):
        check_path(path)


@given(path=st.text(max_size=30) | st.text(alphabet="ab./\\:\0", max_size=12))
def test_an_accepted_path_stays_below_its_directory(path: str) -> None:
    try:
        check_path(path)
    except UsageError:
        return
    parts = path.split("/")
    assert all(parts)
    assert not {".", ".."} & set(parts)
    assert not path.startswith("/")
    assert path.isprintable()


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        (entries()[:1], "not in the bundle"),
        ([*entries(), Entry("extra.py", 0, plain=True)], "not in its manifest"),
        ([*entries(), entries()[0]], "twice"),
        ([Entry(MAIN, 999, plain=True), entries()[1]], "999 bytes"),
        ([Entry(MAIN, len(SOUND[MAIN]), plain=False), entries()[1]], "no plain file"),
    ],
)
def test_a_zip_holds_what_its_manifest_says_and_nothing_else(listed: list[Entry], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check_entries(parse(encoded()), listed)
