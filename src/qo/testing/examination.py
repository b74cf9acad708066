"""Run the conformance suite on a live store, and clean up after it. `qo conformance` uses it.

The tests are the ones that qo's adapters have to pass, run by pytest. Each works below a prefix of its own.
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
from qo.store.port import Deletion, ObjectStore, PutResult

FOLDER = "conformance/"
# How many writers race for one key, how often, and how many versions one key gets.
USUAL: Mapping[str, int] = {"RACERS": 16, "ROUNDS": 3, "VERSIONS_MANY": 25}
THOROUGH: Mapping[str, int] = {
    "RACERS": 32,
    "ROUNDS": 10,
    "VERSIONS_MANY": 1100,
}  # More than one page of versions.
OBSERVED_CHARS_MAX = 300
# Keeps out the plugins and options of the user's environment.
_PYTEST_ENVIRONMENT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": ""}


@dataclass(frozen=True, slots=True)
class Promise:
    """A promise of the suite, and whether the store keeps it."""

    name: str  # The name of its test, in words.
    part: str
    is_kept: bool
    is_answered: bool  # False if the store did not answer, which says nothing about the promise.
    required: bool  # Whether qo cannot work without it.
    observed: str  # What happened instead; empty if it was kept.
    consequence: str  # What that means for qo; empty if it was kept.


async def reach(store: ObjectStore) -> None:
    """Check that the store can be examined. Raises StoreError without a bucket or rights, Unproven without versions."""
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
    """Run the suite and return all promises, in its order; ``on_promise`` is called with each as soon as it is known.

    ``run`` runs a coroutine in the event loop that the store was opened in.
    """
    examiner = _Examiner(store, run, effort, on_promise)
    options = ["-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:logging", "-p", "no:warnings"]
    isolation = [
        "-c",
        os.devnull,
        "--rootdir",
        os.curdir,
        "--noconftest",
        "--capture=no",
    ]  # Ignore the configuration of the current directory.
    with mock.patch.dict(os.environ, _PYTEST_ENVIRONMENT):
        exit_code = pytest.main(
            [*options, *isolation, "--pyargs", "qo.testing.conformance.live"], plugins=[examiner]
        )
    if exit_code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if exit_code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest could not run the suite: exit code {exit_code:d}")
    examiner.finish()
    return examiner.promises


class _KeyRecorder:
    """A store that records the keys it writes and deletes: deleting a missing key may leave a marker, too."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.touched: set[str] = set()

    def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> Awaitable[PutResult]:
        self.touched.add(key)
        return self._store.put(key, body, if_match=if_match, if_absent=if_absent)

    def delete(self, key: str, *, if_match: str | None = None, version: str | None = None) -> Awaitable[None]:
        self.touched.add(key)
        return self._store.delete(key, if_match=if_match, version=version)

    def delete_many(self, deletions: Sequence[Deletion]) -> Awaitable[None]:
        self.touched.update(each.key for each in deletions)
        return self._store.delete_many(deletions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _Examiner:
    """The pytest plugin that gives the store to the tests, runs them, and collects the results."""

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
        self._current: Promise | None = None  # A promise may have several tests, one for each parameter.
        self.promises: list[Promise] = []

    def pytest_configure(self, config: pytest.Config) -> None:
        pytest.register_assert_rewrite("qo.testing.conformance")  # So that failures show the values.

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        """Sort the tests by importance, as the suite lists its parts."""
        from qo.testing.conformance.consequences import PARTS

        order = list(PARTS)
        items.sort(key=lambda item: order.index(_part(item)))

    @pytest.fixture
    def examined(self, request: pytest.FixtureRequest) -> Iterator[Any]:
        for name, value in self._effort.items():
            setattr(request.instance, name, value)
        recorder = _KeyRecorder(self._store)
        yield recorder
        with suppress(StoreError):  # What is left over is small, and nothing else reads it.
            self._run(erase(self._store, recorder.touched))

    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool:
        fixtures: dict[str, Any] = pyfuncitem.funcargs
        names = pyfuncitem._fixtureinfo.argnames  # pyright: ignore[reportPrivateUsage]
        self._run(pyfuncitem.obj(**{name: fixtures[name] for name in names}))
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Function, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "call" or report.failed:
            self._record(item, call, report)
        return report

    def _record(self, item: pytest.Function, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
        from qo.testing.conformance.consequences import consequence_of

        test = item.originalname
        part = _part(item)
        name = test.removeprefix("test_").replace("_", " ")
        if self._current is None or self._current.name != name:
            self.finish()
            self._current = Promise(name, part, True, True, consequence_of(part, test).required, "", "")
        if report.failed and self._current.is_kept and call.excinfo is not None:
            error = call.excinfo.value
            is_answered = not isinstance(error, StoreError) or isinstance(
                error, PreconditionFailed | ConcurrentWrite
            )
            consequence = consequence_of(part, test).text if is_answered else "Unknown, until the store answers."
            observed = _describe_failure(call.excinfo.exconly(tryshort=True))
            self._current = replace(
                self._current, is_kept=False, is_answered=is_answered, observed=observed, consequence=consequence
            )

    def finish(self) -> None:
        if self._current is not None:
            self.promises.append(self._current)
            self._on_promise(self._current)
            self._current = None


def _part(item: pytest.Function) -> str:
    """Return the class of the suite that the test belongs to."""
    function: Any = cast("Any", item).function
    return function.__qualname__.partition(".")[0]


def _describe_failure(text: str) -> str:
    """Return the essence of a failed assertion, in one line."""
    line = " ".join(text.split()).removeprefix("AssertionError: ")
    if "DID NOT RAISE" in line:
        return "the store accepted a write or delete that it had to refuse with 412"
    line = line.partition(" Use -v ")[0].partition(" + where ")[0]  # Hints for debugging the suite itself.
    return line if len(line) <= OBSERVED_CHARS_MAX else f"{line[:OBSERVED_CHARS_MAX]}…"
