# ruff: noqa: F811
"""Bundles from strangers: every attack on the reader of zips fails, and what was registered is what runs."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from pydantic import ValidationError

from qo.api.contract.bundle import CreateBundle
from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import S3Settings, Settings
from qo.core.pipeline import bundle as rules
from qo.dispatcher import aws
from qo.dispatcher.bundles import bundle_store
from qo.dispatcher.bundles.bundle_store import BundleStore
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, open_state
from qo.errors import NotFound, Refused, Unavailable, UsageError
from qo.function import archive
from support.dispatcher.states import clock, create_tables, state  # noqa: F401
from support.dispatcher.zips import MAIN, bundle, manifest_of, sha256, zipped
from support.servers.ports import free_ports
from support.servers.s3 import REGION, S3Server

FILES = {MAIN: b"print('{}')", "lib/deep/a.py": b"A = 1"}


def attacks() -> dict[str, Callable[[], bytes]]:
    """Zips that must be refused, each made when it is its turn."""
    sound = manifest_of(FILES)

    def renamed(path: str) -> bytes:
        files = {MAIN: b"", path: b"evil"}
        return zipped(files, manifest_of(files))

    def hidden(path: str) -> bytes:
        return zipped({**FILES, path: b"evil"}, sound)

    return {
        "traversal, declared": lambda: renamed("../evil.py"),
        "traversal, not declared": lambda: hidden("../evil.py"),
        "deep traversal": lambda: renamed("lib/../../../../etc/cron.d/evil"),
        "absolute": lambda: renamed("/etc/evil.py"),
        "backslashes": lambda: renamed("..\\evil.py"),
        "drive": lambda: renamed("C:/evil.py"),
        "directory entry": lambda: zipped({**FILES, "lib/": b""}, sound),
        "undeclared file": lambda: hidden("evil.py"),
        "missing file": lambda: zipped({MAIN: FILES[MAIN]}, sound),
        "other content": lambda: zipped({**FILES, MAIN: b"print('[]')"}, sound),
        "symbolic link": lambda: zipped(
            {MAIN: b""}, manifest_of({MAIN: b"", "link": b"/etc/passwd"}), links={"link": "/etc/passwd"}
        ),
        "link as a directory": lambda: zipped(
            {MAIN: b"", "lib/a.py": b""},
            manifest_of({MAIN: b"", "lib": b"/tmp", "lib/a.py": b""}),
            links={"lib": "/tmp"},
        ),
        "link as the manifest": lambda: zipped(FILES, None, links={rules.MANIFEST: "/etc/passwd"}),
        "10,000 entries": lambda: zipped({**FILES, **{f"f{n}": b"" for n in range(10_000)}}, sound),
        "1,001 entries": lambda: zipped({**FILES, **{f"f{n}": b"" for n in range(1_000)}}, sound),
        "zip bomb, honest": lambda: renamed_bomb(rules.FILE_BYTES_MAX + 1),
        "zip bomb, lying manifest": lambda: lying_bomb(),
        "zip bomb, lying directory": lambda: lying_directory(),
        "no manifest": lambda: zipped(FILES, None),
        "large manifest": lambda: zipped(FILES, b" " * (rules.MANIFEST_BYTES_MAX + 1)),
        "manifest of another type": lambda: zipped(FILES, b"[]"),
        "unknown field": lambda: zipped(FILES, sound | {"post_install": "rm"}),
        "two manifests": lambda: twice(rules.MANIFEST),
        "file twice": lambda: twice(MAIN),
        "comment": lambda: zipped(FILES, sound, comment=b"PK\x05\x06" + bytes(30)),
        "data after the end": lambda: bundle(FILES) + b"x",
        "data before": lambda: b"x" * 10 + bundle(FILES)[:50],
        "cut": lambda: bundle(FILES)[:-30],
        "empty": lambda: b"",
        "no zip": lambda: b"#!/bin/sh\nrm -rf /\n",
        "encrypted": lambda: flagged(0x1),
        "other method": lambda: method(zipfile.ZIP_LZMA),
        "NUL in a name": lambda: nul(),
        "a directory of a terabyte": lambda: vast(),
    }


def renamed_bomb(size: int) -> bytes:
    files = {MAIN: b"", "bomb": bytes(size)}
    return zipped(files, manifest_of(files))


def lying_bomb() -> bytes:
    files = {MAIN: b"", "bomb": bytes(10_000_000)}
    return zipped(files, manifest_of({MAIN: b"", "bomb": b"1234"}))


def lying_directory() -> bytes:
    """Ten megabytes that the zip's directory calls four bytes, as the manifest does."""
    body = bytearray(lying_bomb())
    size = struct.pack("<L", 10_000_000)
    assert size in body
    return bytes(body.replace(size, struct.pack("<L", 4)))


def twice(path: str) -> bytes:
    written = io.BytesIO(bundle(FILES))
    with zipfile.ZipFile(written, "a") as archived, pytest.warns(UserWarning, match="Duplicate"):
        archived.writestr(path, b"other")
    return written.getvalue()


def flagged(bits: int) -> bytes:
    body = bytearray(bundle(FILES))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = body.find(signature)
        body[at + offset] |= bits
    return bytes(body)


def method(kind: int) -> bytes:
    written = io.BytesIO(bundle({MAIN: b""}, files=manifest_of({MAIN: b"", "b": b"1"})["files"]))
    with zipfile.ZipFile(written, "a") as archived:
        archived.writestr("b", b"1", kind)
    return written.getvalue()


def nul() -> bytes:
    files = {MAIN: b"", "evilXpy": b""}
    return zipped(files, manifest_of({MAIN: b"", "evil": b""})).replace(b"evilXpy", b"evil\0py")


def vast() -> bytes:
    body = bytearray(bundle(FILES))
    body[-10:-6] = struct.pack("<L", 2**31)  # The size of the directory.
    return bytes(body)


@pytest.mark.fast
@pytest.mark.parametrize("name", attacks())
def test_an_attack_is_refused_and_leaves_nothing_outside(name: str, tmp_path: Path) -> None:
    body = attacks()[name]()
    target = tmp_path / "deep" / "down" / "code"
    target.mkdir(parents=True)
    with pytest.raises(UsageError):
        archive.unpack(body, sha256(body), target)
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and target not in path.parents]
    assert outside == []
    assert not Path("/tmp/evil.py").exists()


@pytest.mark.fast
def test_a_sound_bundle_is_unpacked_file_by_file(tmp_path: Path) -> None:
    body = bundle(FILES)
    assert archive.inspect(body, sha256(body)) == archive.unpack(body, sha256(body), tmp_path)
    found = {str(path.relative_to(tmp_path)): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == FILES


@pytest.mark.fast
def test_other_bytes_than_were_promised_are_not_even_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="sha256"):
        archive.unpack(bundle(FILES), sha256(b"other"), tmp_path)


@pytest.fixture
def shelf(tmp_path: Path) -> BundleStore:
    return BundleStore(Settings(dispatcher=DispatcherSettings(data=f"file:{tmp_path / 'data'}")))


def registered(state: State, shelf: BundleStore, body: bytes) -> str:
    with state.write() as tx:
        return bundle_store.register(
            tx, CreateBundle(sha256=sha256(body), bytes=len(body)), "ada", shelf
        ).bundle_id


def test_a_bundle_is_registered_uploaded_and_finalized(state: State, shelf: BundleStore) -> None:
    body = bundle(FILES)
    made = registered(state, shelf, body)
    assert registered(state, shelf, body) == made
    with state.read() as tx, pytest.raises(Refused, match="finalize"):
        bundle_store.usable(tx, made)
    bundle_store.upload(state, shelf, made, body)
    final = bundle_store.finalize(state, shelf, made)
    assert (final.state, final.runtime, final.entrypoint, final.files) == ("final", "python", MAIN, 2)
    assert bundle_store.finalize(state, shelf, made) == final
    with state.read() as tx:
        assert bundle_store.usable(tx, made) == final
    assert shelf.read(sha256(body)) == body


def test_only_the_announced_bytes_are_taken(state: State, shelf: BundleStore) -> None:
    made = registered(state, shelf, bundle(FILES))
    with pytest.raises(UsageError, match="sha256"):
        bundle_store.upload(state, shelf, made, bundle({MAIN: "evil"}))
    with pytest.raises(NotFound, match="upload"):
        bundle_store.finalize(state, shelf, made)


def test_an_unsound_bundle_is_never_final(state: State, shelf: BundleStore) -> None:
    body = zipped({**FILES, "../evil": b""}, manifest_of(FILES))
    made = registered(state, shelf, body)
    bundle_store.upload(state, shelf, made, body)
    with pytest.raises(UsageError):
        bundle_store.finalize(state, shelf, made)
    with state.read() as tx, pytest.raises(Refused):
        bundle_store.usable(tx, made)


@pytest.mark.parametrize("name", ["", "nothing", "../../etc/passwd", "' OR 1=1 --"])
def test_a_bundle_that_nobody_registered_is_not_found(state: State, shelf: BundleStore, name: str) -> None:
    for ask in (
        lambda: bundle_store.upload(state, shelf, name, b""),
        lambda: bundle_store.finalize(state, shelf, name),
    ):
        with pytest.raises(NotFound):
            ask()
    with state.read() as tx:
        assert tx.value(sa.select(sa.func.count()).select_from(schema.bundles)) == 0


@pytest.mark.fast
@pytest.mark.parametrize("text", ["", "../x", "A" * 64, "0" * 63, "0" * 64 + "\n", "0" * 65])
def test_a_hash_that_is_none_never_becomes_a_path(shelf: BundleStore, text: str) -> None:
    with pytest.raises(ValidationError):
        CreateBundle(sha256=text, bytes=1)
    with pytest.raises(UsageError):
        shelf.read(text)


@pytest.mark.fast
def test_an_upload_that_is_too_large_is_refused_when_it_is_announced() -> None:
    with pytest.raises(ValidationError):
        CreateBundle(sha256="0" * 64, bytes=rules.ZIP_BYTES_MAX + 1)


@pytest.fixture
def books(tmp_path: Path) -> Iterator[State]:
    """A state for tests that need a server: what the database is makes no difference to it."""
    opened = open_state(f"sqlite:{tmp_path / 'books.db'}")
    create_tables(opened)
    yield opened
    opened.close()


@pytest.mark.s3
def test_bundles_are_kept_in_a_bucket_too(
    books: State, s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    aws.client.cache_clear()
    settings = Settings(
        dispatcher=DispatcherSettings(data=f"s3://{s3_bucket}/root"),
        s3=S3Settings(endpoint=s3_server.endpoint, region=REGION),
    )
    shelf, body = BundleStore(settings), bundle(FILES)
    made = registered(books, shelf, body)
    with pytest.raises(NotFound):
        bundle_store.finalize(books, shelf, made)
    bundle_store.upload(books, shelf, made, body)
    assert bundle_store.finalize(books, shelf, made).state == "final"
    assert shelf.read(sha256(body)) == body
    assert s3_server.endpoint in (shelf.get_url(sha256(body)) or "")
    aws.client.cache_clear()


@pytest.mark.fast
def test_a_bucket_that_does_not_answer_may_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    endpoint = f"http://127.0.0.1:{free_ports(1)[0]}"
    shelf = BundleStore(
        Settings(
            dispatcher=DispatcherSettings(data="s3://data/root"), s3=S3Settings(endpoint=endpoint, region=REGION)
        )
    )
    with pytest.raises(Unavailable):
        shelf.read("0" * 64)
