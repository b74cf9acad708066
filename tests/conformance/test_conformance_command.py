"""``qo conformance``: a good store passes, a bad one is found out, and nothing is left behind."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from qo.errors import AccessDenied, Unproven
from qo.store.memory import MemoryStore
from qo.store.opening import shared
from qo.store.port import LIST_LIMIT_MAX, Page, PutResult, Stored
from qo.testing import examination
from qo.testing.conformance import StoreConformance
from qo.testing.conformance.consequences import DISPENSABLE, PARTS, UNSAFE_TOO, consequence_of
from support.cli.command import Qo
from support.servers.proxies import HeaderDroppingProxy
from support.servers.s3 import S3Server

LIGHT = {"RACERS": 4, "ROUNDS": 2, "VERSIONS_MANY": 5}


class Forgetful(MemoryStore):
    """Says that it has written, and has not."""

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        if len(body) > 2**20:
            return PutResult('"etag"', "1")
        return await super().put(key, body, if_match=if_match, if_absent=if_absent)


class Unconditional(MemoryStore):
    """Does not know If-None-Match."""

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        return await super().put(key, body, if_match=if_match)


class Lagging(MemoryStore):
    """Lists what was there a moment ago."""

    _before: Page = Page([], False)

    async def list(self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX) -> Page:
        page, self._before = self._before, await super().list(prefix, start_after=start_after, limit=limit)
        return page


class Closed(MemoryStore):
    async def get(self, key: str, *, version: str | None = None) -> Stored | None:
        if "/a" in key:
            raise AccessDenied("not yours")
        return await super().get(key, version=version)


def examined(store: MemoryStore, **more: Any) -> list[examination.Promise]:
    with asyncio.Runner() as runner:
        return examination.examine(store, runner.run, effort=LIGHT, **more)


def broken(store: MemoryStore) -> set[str]:
    return {promise.name for promise in examined(store) if not promise.is_kept}


@pytest.mark.fast
def test_every_promise_is_told_once_and_those_that_matter_most_first() -> None:
    told: list[examination.Promise] = []
    promises = examined(MemoryStore(), on_promise=told.append)
    assert promises == told
    assert all(promise.is_kept and promise.is_answered and not promise.observed for promise in promises)
    assert len({promise.name for promise in promises}) == len(promises) == len(whole_suite())
    assert list(dict.fromkeys(promise.part for promise in promises)) == list(PARTS)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("store", "found"),
    [
        (Forgetful, {"a body of five megabytes comes back whole"}),
        (Unconditional, {"a key is created once", "of many racing creators one wins"}),
        (Lagging, {"a list shows every write before it", "start after is exclusive"}),
    ],
)
def test_a_store_that_breaks_a_promise_is_found_out(store: type[MemoryStore], found: set[str]) -> None:
    assert found <= broken(store())


@pytest.mark.fast
def test_what_was_seen_and_what_it_means_is_told() -> None:
    promises = {promise.name: promise for promise in examined(Unconditional())}
    created = promises["a key is created once"]
    assert (created.required, created.is_answered) == (True, True)
    assert created.observed == "the store accepted a write or delete that it had to refuse with 412"
    assert "two workers would run the same task" in created.consequence
    raced = promises["of many racing creators one wins"]
    assert raced.observed.startswith("4 writers won, according to the store")


@pytest.mark.fast
def test_no_answer_is_not_a_broken_promise() -> None:
    silent = [promise for promise in examined(Closed()) if not promise.is_kept]
    assert silent
    assert not any(promise.is_answered for promise in silent)
    assert "not yours" in silent[0].observed


@pytest.mark.fast
def test_nothing_is_left_behind_and_nothing_else_is_touched() -> None:
    store = MemoryStore()

    async def keys() -> Sequence[str]:
        return [key for key in store._history if await store.versions(key)]

    asyncio.run(store.put("mine", b"1"))
    before = asyncio.run(store.get("mine"))
    examined(store)
    assert asyncio.run(keys()) == ["mine"]
    assert asyncio.run(store.get("mine")) == before


@pytest.mark.fast
async def test_a_bucket_without_versions_is_told_before_anything_else() -> None:
    with pytest.raises(Unproven, match="versioning is off"):
        await examination.reach(MemoryStore(versioned=False))


def whole_suite() -> dict[str, str]:
    """By name, the part that each stands in."""
    return {
        name: part.__name__ for part in StoreConformance.__mro__ for name in vars(part) if name.startswith("test_")
    }


@pytest.mark.fast
def test_every_test_of_the_suite_has_a_meaning_and_every_meaning_a_test() -> None:
    suite = whole_suite()
    assert set(suite.values()) == set(PARTS)
    assert set(DISPENSABLE) | UNSAFE_TOO <= set(suite)
    assert all(consequence_of(part, name).text for name, part in suite.items())


@pytest.mark.fast
def test_the_command_prints_a_table_or_a_document(tmp_path: Path) -> None:
    qo = Qo(tmp_path)
    answer = qo("conformance", "memory:")
    assert (answer.code, answer.err) == (0, "")
    assert "a key is created once" in answer.out
    assert answer.out.endswith("promises are kept: memory: is fit for qo\n")
    document = qo.here("conformance", f"local:{tmp_path / 'store'}", "--json").document
    assert document["ok"] is True
    assert {promise["kept"] for promise in document["promises"]} == {True}


@pytest.mark.fast
def test_a_store_that_cannot_be_trusted_ends_the_command_with_6(tmp_path: Path) -> None:
    with shared("bad", Unconditional()):
        answer = Qo(tmp_path).here("conformance", "memory:bad")
        document = Qo(tmp_path).here("conformance", "memory:bad", "--json")
    assert (answer.code, document.code) == (6, 6)
    assert "memory:bad cannot be trusted with a queue" in answer.err
    assert answer.out.count("two workers would run the same task") == 1
    assert document.document["ok"] is False


@pytest.mark.fast
def test_without_pytest_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from qo.cli.main import main

    monkeypatch.chdir(tmp_path)
    real = builtins.__import__

    def absent(name: str, *rest: Any) -> Any:
        if name == "qo.testing":
            raise ModuleNotFoundError("No module named 'pytest'", name="pytest")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", absent)
    assert main(["conformance", "memory:"]) == 2
    assert "pip install pytest" in capsys.readouterr().err


def versions_in(server: S3Server, bucket: str) -> list[str]:
    found = server.admin.list_object_versions(Bucket=bucket)
    return sorted(each["Key"] for kind in ("Versions", "DeleteMarkers") for each in found.get(kind, []))


@pytest.mark.s3
@pytest.mark.long
def test_a_real_bucket_is_fit_and_is_left_as_it_was(s3_server: S3Server, tmp_path: Path) -> None:
    bucket = s3_server.make_bucket()
    s3_server.admin.put_object(Bucket=bucket, Key="mine", Body=b"1")
    answer = Qo(tmp_path, s3_server.environment(bucket))(
        "conformance", f"s3://{bucket}/some/prefix", "--json", timeout_s=300
    )
    assert answer.code == 0, answer
    deviations = {promise["name"] for promise in answer.document["promises"] if not promise["kept"]}
    assert deviations <= {
        "keys are listed in the order of their bytes",  # SeaweedFS walks directories.
        "a delete and a replace of one etag never both happen",  # Nor is its conditional delete atomic.
    }
    assert versions_in(s3_server, bucket) == ["mine"]


@pytest.mark.s3
def test_a_proxy_that_drops_conditions_is_found_out(s3_server: S3Server) -> None:
    bucket = s3_server.make_bucket()
    host, port = s3_server.endpoint.removeprefix("http://").split(":")
    with HeaderDroppingProxy(host, int(port)) as proxy, asyncio.Runner() as runner:
        store = runner.run(s3_server.open_store(bucket, endpoint=proxy.endpoint))
        try:
            promises = examination.examine(store, runner.run, effort=LIGHT)
        finally:
            runner.run(store.close())
    needed = {promise.name for promise in promises if promise.required and not promise.is_kept}
    assert {"a key is created once", "of many racing creators one wins"} <= needed
    assert versions_in(s3_server, bucket) == []


@pytest.mark.s3
@pytest.mark.parametrize(
    ("changed", "code", "said"),
    [
        ({"S3_BUCKET": "no-such-bucket"}, 5, "There is no bucket 'no-such-bucket'"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, 5, "The secret key is wrong"),
        ({"S3_ENDPOINT": "http://127.0.0.1:9"}, 5, "Is the server up"),
    ],
)
def test_what_stands_in_the_way_is_told_first(
    s3_server: S3Server, tmp_path: Path, changed: dict[str, str], code: int, said: str
) -> None:
    environ = {**s3_server.environment("ready"), **changed}
    answer = Qo(tmp_path, environ).here("conformance")
    assert answer.code == code
    assert said in answer.err
