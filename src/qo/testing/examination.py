"""Holds a live store to the conformance suite, and cleans up behind it. `qo conformance` runs it.

The tests are those that adapters are held to in pytest, run by pytest. Each works under a prefix of its own.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast
from unittest import mock

import pytest

from qo.ambient import SYSTEM
from qo.core import keys
from qo.errors import ConcurrentWrite, PreconditionFailed, StoreError, Unproven
from qo.store.erasing import erase
from qo.store.port import Doomed, ObjectStore, Written

FOLDER = "conformance/"
# How many race for one key, how often, and how many versions one key gets.
USUAL: Mapping[str, int] = {"RACERS": 16, "ROUNDS": 3, "VERSIONS_MANY": 25}
THOROUGH: Mapping[str, int] = {"RACERS": 32, "ROUNDS": 10, "VERSIONS_MANY": 1100}  # More than one page of them.
SEEN_CHARS_MAX = 300
# Without the plugins and options of whoever runs it.
_ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": ""}


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise of the suite, and whether the store has kept it."""

    name: str  # In words.
    part: str
    kept: bool
    answered: bool  # False: the store gave no answer, which says nothing of its promises.
    required: bool  # Whether qo cannot do without.
    seen: str  # What was seen instead; empty if it was kept.
    means: str  # What that means for qo; empty if it was kept.


async def reach(store: ObjectStore) -> None:
    """Raises what is wrong with the way to the store, before any promise is spoken of: no bucket, no rights, no
    versions."""
    await store.get(keys.QUEUE)
    probe = f"{FOLDER}{SYSTEM.token()}"
    await store.put(probe, b"")
    try:
        if not await store.versioned():
            raise Unproven(
                "versioning is off, and many of the promises are about versions: enable it (`qo doctor --fix` does, "
                "or your server's own tool), or examine another bucket"
            )
        await store.versions(probe)
    finally:
        with suppress(StoreError):
            await erase(store, [probe])


def examine(
    store: ObjectStore,
    run: Callable[[Coroutine[Any, Any, Any]], Any],
    *,
    effort: Mapping[str, int] = USUAL,
    on_promise: Callable[[Promise], None] = lambda promise: None,
) -> list[Promise]:
    """Every promise, in the order of the suite; ``on_promise`` hears of each as it is known.

    ``run`` waits for a call of the store, in the event loop that the store was opened in.
    """
    examiner = _Examiner(store, run, effort, on_promise)
    options = ["-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:logging", "-p", "no:warnings"]
    own = [
        "-c",
        os.devnull,
        "--rootdir",
        os.curdir,
        "--noconftest",
        "--capture=no",
    ]  # Whatever is here is not ours.
    with mock.patch.dict(os.environ, _ALONE):
        ended = pytest.main([*options, *own, "--pyargs", "qo.testing.conformance.held"], plugins=[examiner])
    if ended == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if ended not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest could not run the suite: exit code {ended:d}")
    examiner.finish()
    return examiner.promises


class _Noting:
    """The store itself, which remembers what keys were touched: a delete of nothing may leave a marker."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.touched: set[str] = set()

    def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> Awaitable[Written]:
        self.touched.add(key)
        return self._store.put(key, body, if_match=if_match, if_absent=if_absent)

    def delete(self, key: str, *, if_match: str | None = None) -> Awaitable[None]:
        self.touched.add(key)
        return self._store.delete(key, if_match=if_match)

    def delete_many(self, doomed: Sequence[Doomed]) -> Awaitable[None]:
        self.touched.update(each.key for each in doomed)
        return self._store.delete_many(doomed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _Examiner:
    """The plugin: brings the store to the tests, runs them, and hears what came of each."""

    def __init__(
        self,
        store: ObjectStore,
        run: Callable[[Coroutine[Any, Any, Any]], Any],
        effort: Mapping[str, int],
        on_promise: Callable[[Promise], None],
    ) -> None:
        self._store = store
        self._run = run
        self._effort = effort
        self._on_promise = on_promise
        self._current: Promise | None = None  # One promise may be several tests: one for each parameter.
        self.promises: list[Promise] = []

    def pytest_configure(self, config: pytest.Config) -> None:
        pytest.register_assert_rewrite("qo.testing.conformance")  # So that failures say what was seen.

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        """From what matters most to what is seldom needed, as the suite names its parts."""
        from qo.testing.conformance.meaning import PARTS

        order = list(PARTS)
        items.sort(key=lambda item: order.index(_part(item)))

    @pytest.fixture
    def examined(self, request: pytest.FixtureRequest) -> Iterator[Any]:
        for name, value in self._effort.items():
            setattr(request.instance, name, value)
        noting = _Noting(self._store)
        yield noting
        with suppress(StoreError):  # What stays is small, and nothing else looks there.
            self._run(erase(self._store, noting.touched))

    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool:
        needed: dict[str, Any] = pyfuncitem.funcargs
        asked = pyfuncitem._fixtureinfo.argnames  # pyright: ignore[reportPrivateUsage]
        self._run(pyfuncitem.obj(**{name: needed[name] for name in asked}))
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Function, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "call" or report.failed:
            self._hear(item, call, report)
        return report

    def _hear(self, item: pytest.Function, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
        from qo.testing.conformance.meaning import meaning

        test = item.originalname
        part = _part(item)
        name = test.removeprefix("test_").replace("_", " ")
        if self._current is None or self._current.name != name:
            self.finish()
            self._current = Promise(name, part, True, True, meaning(part, test).required, "", "")
        if report.failed and self._current.kept and call.excinfo is not None:
            error = call.excinfo.value
            answered = not isinstance(error, StoreError) or isinstance(error, PreconditionFailed | ConcurrentWrite)
            means = meaning(part, test).text if answered else "Unknown, until the store answers."
            seen = _seen(call.excinfo.exconly(tryshort=True))
            self._current = replace(self._current, kept=False, answered=answered, seen=seen, means=means)

    def finish(self) -> None:
        if self._current is not None:
            self.promises.append(self._current)
            self._on_promise(self._current)
            self._current = None


def _part(item: pytest.Function) -> str:
    """The class of the suite that a test stands in."""
    function: Any = cast("Any", item).function
    return function.__qualname__.partition(".")[0]


def _seen(text: str) -> str:
    """The heart of a failed assertion, in one line."""
    line = " ".join(text.split()).removeprefix("AssertionError: ")
    if "DID NOT RAISE" in line:
        return "a write or delete was accepted that had to be refused with 412"
    line = line.partition(" Use -v ")[0].partition(" + where ")[0]  # Hints for who debugs the suite itself.
    return line if len(line) <= SEEN_CHARS_MAX else f"{line[:SEEN_CHARS_MAX]}…"
