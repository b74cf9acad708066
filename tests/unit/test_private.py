"""What qo keeps on a disk is for its owner alone, whatever the umask is; what was opened on purpose stays open."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from qo.dispatcher.state.database import open_state
from qo.errors import ConfigError
from qo.store import private
from qo.store.local import LocalStore
from qo.store.secret_files import open_directory
from qo.store.sqlite_file import connect
from qo.up.lock import Lock
from support.dispatcher.states import create_tables

pytestmark = pytest.mark.fast


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(root: Path) -> dict[str, int]:
    """Of all that is below a directory, and of itself."""
    return {str(each.relative_to(root.parent)): _mode(each) for each in (root, *root.rglob("*"))}


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_nothing_of_an_embedded_queue_can_be_read_by_others(tmp_path: Path) -> None:
    store = await LocalStore.open(tmp_path / ".qo" / "queues" / "spark")
    await store.put("tasks/secret", b"{}")
    found = modes(tmp_path / ".qo")
    await store.close()
    assert {name for name, mode in found.items() if mode & 0o077} == set()
    assert len(found) == 6, "the directories, too, and what SQLite keeps beside its file"


def test_nothing_of_a_site_can_be_read_by_others(tmp_path: Path) -> None:
    home = tmp_path / ".qo"
    state = open_state(f"sqlite:{home}/state/state.db")
    create_tables(state)
    with Lock(home / "up" / "lock"):
        open_directory(home / "secrets" / "of" / "this")
        private.make_directory(home / "logs")
        private.open_log(home / "logs" / "worker.log").close()
        private.prepare_data_root(f"file:{home}/data")
        assert {name for name, mode in modes(home).items() if mode & 0o077} == set()
    state.close()


@pytest.mark.parametrize("shared", [0o660, 0o666])
def test_a_store_that_the_umask_left_readable_is_closed_and_one_that_is_shared_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, shared: int
) -> None:
    connect(tmp_path, durable=False).close()
    file = tmp_path / "store.db"
    file.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        connect(tmp_path, durable=False).close()
    assert _mode(file) == 0o600
    assert "could be read by other users" in caplog.text
    file.chmod(shared)
    connect(tmp_path, durable=False).close()
    assert _mode(file) == shared


def test_a_state_that_the_umask_left_readable_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.touch(0o644)
    state = open_state(f"sqlite:{path}")
    create_tables(state)
    state.close()
    assert _mode(path) == 0o600


def test_a_data_root_that_everybody_reaches_is_told_of_and_left_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "data"
    root.mkdir(mode=0o755)
    private.prepare_data_root(f"file:{root}")
    assert caplog.text == "", "nobody gets through what is above it"
    monkeypatch.setattr(Path, "parents", property(lambda path: ()))
    private.prepare_data_root(f"file:{root}")
    assert f"chmod 700 {root}" in caplog.text
    assert _mode(root) == 0o755


def test_a_place_where_something_else_is_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="Name a directory"):
        connect(tmp_path / "file", durable=False)
    with pytest.raises(OSError, match="file"):
        private.make_directory(tmp_path / "file" / "below")
