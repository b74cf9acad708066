"""Bundles on a worker's machine: what is run is what was deployed, or nothing is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from qo.agent.code.bundle_cache import DIRECTORY, CodeStore, CodeUnavailable
from qo.agent.code.loaded import OwnCode
from qo.api.contract.task import Work, WorkCode
from qo.errors import NotFound
from qo.pipeline.code.bundling import Bundle, Project, pack
from qo.pipeline.code.fingerprint import fingerprint
from qo.store.blocking_files import BlockingFiles

pytestmark = pytest.mark.fast


@pytest.fixture
def store() -> Iterator[CodeStore]:
    found = CodeStore(BlockingFiles())
    yield found
    found.close()


def packed(home: Path, rate: int) -> tuple[Bundle, str]:
    home.mkdir(exist_ok=True)
    (home / "rates.py").write_text(f"RATE = {rate}\n")
    (home / "ops.py").write_text(
        "from pathlib import Path\n\nimport rates\n\n\ndef rate():\n"
        "    return rates.RATE, Path(__file__).with_name('rule.txt').read_text()\n"
    )
    project = Project({"rule.txt": b"always"})
    return pack({"job": "ops:rate"}, [home], project), fingerprint("ops:rate", [home], project.files)


def work(place: Path, bundle: Bundle, code: str, operator: str = "ops:rate") -> Work:
    path = place / f"{bundle.sha256}.zip"
    if not path.exists():
        path.write_bytes(bundle.body)
    return Work(
        task_id="t",
        attempt=1,
        dag="shop",
        job="job",
        version=1,
        runtime="python",
        operator=operator,
        update_strategy="replace",
        code=WorkCode(sha256=bundle.sha256, location=f"file:{path}", fingerprint=code),
    )


def test_two_versions_run_side_by_side_with_their_files(store: CodeStore, tmp_path: Path) -> None:
    loaded = []
    for rate in (1, 2):
        bundle, code = packed(tmp_path / f"v{rate}", rate)
        opened = store.open(work(tmp_path, bundle, code))
        assert opened.fingerprint == code
        loaded.append(opened.load("ops:rate"))
    assert [function() for function in loaded] == [(1, "always"), (2, "always")]
    assert not {"ops", "rates"} & sys.modules.keys()


def test_a_task_without_a_bundle_runs_the_workers_own_code(store: CodeStore, tmp_path: Path) -> None:
    bundle, code = packed(tmp_path / "v1", 1)
    assert isinstance(store.open(work(tmp_path, bundle, code).model_copy(update={"code": None})), OwnCode)


@pytest.mark.parametrize("harm", ["gone", "cut", "other"])
def test_a_bundle_that_is_not_the_one_that_was_deployed_is_not_run(
    store: CodeStore, tmp_path: Path, harm: str
) -> None:
    bundle, code = packed(tmp_path / "v1", 1)
    wanted = work(tmp_path, bundle, code)
    path = tmp_path / f"{bundle.sha256}.zip"
    bodies = {"gone": None, "cut": bundle.body[:-10], "other": packed(tmp_path / "v2", 2)[0].body}
    body = bodies[harm]
    path.unlink() if body is None else path.write_bytes(body)
    with pytest.raises(CodeUnavailable, match="cannot be read from"):
        store.open(wanted)
    path.write_bytes(bundle.body)  # Back again, it is fetched again.
    assert store.open(wanted).fingerprint == code


class CountingStorage(BlockingFiles):
    reads = 0

    def read(self, uri: str) -> bytes:
        self.reads += 1
        return super().read(uri)


class HeldUpStorage(BlockingFiles):
    """Reads that do not return before they may."""

    def __init__(self) -> None:
        self.reading, self.may_go = threading.Event(), threading.Event()
        self.may_go.set()

    def read(self, uri: str) -> bytes:
        self.reading.set()
        assert self.may_go.wait(30)
        return super().read(uri)


def test_code_that_is_here_is_opened_while_other_code_is_still_fetched(tmp_path: Path) -> None:
    # The event loop opens what is here, and the read that it would wait for needs the event loop.
    storage = HeldUpStorage()
    store = CodeStore(storage)
    here, other = (work(tmp_path, *packed(tmp_path / f"v{rate}", rate)) for rate in (1, 2))
    store.open(here)
    storage.may_go.clear()
    storage.reading.clear()
    with ThreadPoolExecutor(2) as threads:
        fetched = threads.submit(store.open, other)
        try:
            assert storage.reading.wait(30)
            assert store.is_ready(here)
            assert threads.submit(store.open, here).result(10).load("ops:rate")() == (1, "always")
        finally:
            storage.may_go.set()
        assert fetched.result(30).load("ops:rate")() == (2, "always")
    store.close()


def test_a_bundle_that_several_tasks_wait_for_is_fetched_once(tmp_path: Path) -> None:
    storage = CountingStorage()
    store = CodeStore(storage)
    wanted = work(tmp_path, *packed(tmp_path / "v1", 1))
    with ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(store.open, 4 * [wanted]))
    assert (storage.reads, len({each.shipped for each in opened})) == (1, 1)
    store.close()


def test_code_that_is_not_the_tasks_is_not_run(store: CodeStore, tmp_path: Path) -> None:
    bundle, _ = packed(tmp_path / "v1", 1)
    with pytest.raises(CodeUnavailable, match="the task belongs to another-code"):
        store.open(work(tmp_path, bundle, "another-code"))


def test_a_module_that_was_not_deployed_is_named_with_what_to_do(store: CodeStore, tmp_path: Path) -> None:
    bundle, code = packed(tmp_path / "v1", 1)
    opened = store.open(work(tmp_path, bundle, code))
    with pytest.raises(
        NotFound, match="no module 'missing' in the code that was deployed: name it under 'include'"
    ):
        opened.load("missing:run")


def test_what_a_killed_worker_left_behind_is_removed_by_the_next() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    left = Path(tempfile.mkdtemp(prefix=f"{DIRECTORY}{gone.pid}-"))
    other = Path(tempfile.mkdtemp(prefix=f"{DIRECTORY}{os.getpid()}-"))
    CodeStore(BlockingFiles()).close()
    assert (left.exists(), other.exists()) == (False, True)
    other.rmdir()
