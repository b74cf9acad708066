"""The directories that a sandboxed function sees: its code, and those that it writes, which are lent and taken back.

Others read these files with more rights than the function had, so nothing but plain files may come back: a link would
lead a reader to files that the function itself could not see.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from qo.errors import UsageError
from qo.function.namespace_init import NOBODY


def show_code(code: Path) -> None:
    """Let the user that functions of root run as read the code; who else may is decided by the directory above."""
    for directory, _, files in os.walk(code):
        Path(directory).chmod(0o755)
        for name in files:
            Path(directory, name).chmod(0o644)


def prepare_outputs(directories: Iterable[Path]) -> None:
    """Create the directories; one that root lends belongs to the user that functions of root run as."""
    for each in directories:
        each.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(each, NOBODY, NOBODY)


def return_outputs(directories: Iterable[Path]) -> None:
    """Make everything that was written ours again.

    Raises UsageError, and deletes what it names, for anything that is neither a plain file nor a directory.
    """
    odd = [path for each in directories for path in _take_back(each)]
    if odd:
        raise UsageError(
            f"the function wrote {odd[0].name!r}, which is no plain file: outputs have no links or devices"
        )


def _take_back(directory: Path) -> list[Path]:
    odd: list[Path] = []
    _own(directory, 0o700 | stat.S_IMODE(directory.lstat().st_mode) & 0o755)
    for path in sorted(directory.iterdir()):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            odd += _take_back(path)
        elif stat.S_ISREG(mode) and path.lstat().st_nlink == 1:
            _own(path, 0o600 | stat.S_IMODE(mode) & 0o666)
        else:
            path.unlink()
            odd.append(path)
    return odd


def _own(path: Path, mode: int) -> None:
    if os.geteuid() == 0:
        os.chown(path, 0, os.getegid(), follow_symlinks=False)
    path.chmod(mode)
