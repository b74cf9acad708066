"""Which files ``qo up`` looks at, and when it takes them for saved."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from qo.pipeline.target import unload
from qo.up.saved_files import SavedFiles

pytestmark = pytest.mark.fast


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(len(text), len(text)))


def test_a_save_is_seen_once_it_is_complete_and_reported_once(tmp_path: Path):
    write(tmp_path / "a.py", "1")
    files = SavedFiles([tmp_path])
    assert not files.poll()
    write(tmp_path / "a.py", "12")
    assert not files.poll()  # It may still be written.
    assert files.poll()
    files.mark_read()
    assert not files.poll()
    (tmp_path / "a.py").unlink()
    assert [files.poll(), files.poll()] == [False, True]


def test_files_below_hidden_directories_and_data_are_no_code(tmp_path: Path):
    files = SavedFiles([tmp_path])
    for name in (".qo/a.py", "__pycache__/b.py", "landing/c.csv"):
        write(tmp_path / name, "1")
    assert [files.poll(), files.poll()] == [False, False]
    write(tmp_path / "sql" / "d.sql", "1")
    assert [files.poll(), files.poll()] == [False, True]


def test_unloading_forgets_the_modules_of_a_directory_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path / "saved_module.py", "X = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("saved_module")
    before = set(sys.modules)
    unload([tmp_path])
    assert before - set(sys.modules) == {"saved_module"}
