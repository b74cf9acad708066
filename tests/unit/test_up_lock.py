"""One ``qo up`` in a directory at a time, whose dispatcher other commands find."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qo.cli.pipelines.catalog import _address as catalog_address
from qo.config import origins
from qo.errors import Refused
from qo.up.lock import LOCK_PATH, Lock, find_address

pytestmark = pytest.mark.fast

URL = "http://127.0.0.1:40123"


def test_a_second_one_is_refused_and_names_the_process_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "up.lock"
    with Lock(path) as lock:
        lock.publish_address(URL)
        with pytest.raises(Refused, match=f"as process {os.getpid()}:"):
            Lock(path).__enter__()
    with Lock(path):
        pass


def test_the_address_is_known_from_its_publication_to_the_end_of_the_process(tmp_path: Path) -> None:
    path = tmp_path / "up.lock"
    assert find_address(path) is None
    with Lock(path) as lock:
        assert find_address(path) is None
        lock.publish_address(URL)
        assert find_address(path) == URL
    assert find_address(path) is None
    with Lock(path):
        assert find_address(path) is None, "the address of the one before"


def test_the_catalogue_is_connected_to_where_qo_up_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    usual = catalog_address(origins.load({}))
    with Lock(LOCK_PATH) as lock:
        lock.publish_address(URL)
        assert catalog_address(origins.load({})) == URL
        assert catalog_address(origins.load({"dispatcher.url": "http://qo.example"})) == "http://qo.example"
    assert catalog_address(origins.load({})) == usual != URL
