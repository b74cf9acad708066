"""Create files and directories that only their owner may read, for machines with several users.

Files that others created, or that were opened to others on purpose, stay as they are.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from qo.config.location import local_path

log = logging.getLogger(__name__)

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
_WRITABLE = stat.S_IWGRP | stat.S_IWOTH
_READABLE = stat.S_IRGRP | stat.S_IROTH
_ACCESS, _EXECUTABLE = 0o775, 0o111  # Nothing is ever open to the writes of everybody.


def make_directory(path: Path) -> None:
    """Create the directory and its missing parents; an existing one stays as it is. Raises OSError."""
    if path.is_dir():
        return
    with contextlib.suppress(FileExistsError):  # ``Path.mkdir`` applies the mode to the last directory only.
        make_directory(path.parent)
        path.mkdir(mode=DIRECTORY_MODE)
        return
    path.mkdir(exist_ok=True)  # Another process has created it meanwhile; or it is no directory, and this raises.


def make_data_directory(path: Path) -> None:
    """Create the directory of a dataset and its missing parents, each as open as the one above it. Raises OSError.

    Whatever the umask is: data is private because its root is, and shared by opening the root.
    """
    if path.is_dir():
        return
    make_data_directory(path.parent)
    mode = path.parent.stat().st_mode & _ACCESS
    with contextlib.suppress(FileExistsError):  # Another process has created it meanwhile.
        path.mkdir(mode=DIRECTORY_MODE)
        if mode != DIRECTORY_MODE:
            path.chmod(mode | path.stat().st_mode & stat.S_ISGID)  # Which a shared root hands down.
        return
    path.mkdir(exist_ok=True)  # It is no directory, and this raises.


def write_data_file(path: Path, body: bytes) -> None:
    """Write a new file, as open as its directory: whoever may enter that may read it. Raises OSError."""
    mode = path.parent.stat().st_mode & _ACCESS & ~_EXECUTABLE
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        if mode != FILE_MODE:
            os.fchmod(descriptor, mode)
        file.write(body)


def create_file(path: Path) -> bool:
    """Create an empty file; return False if there is one. Raises OSError.

    An existing file is not opened: closing it would release all locks of this process on it, those of SQLite's own
    connections included.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    except FileExistsError:
        return False
    return True


def close_to_others(paths: Iterable[Path]) -> None:
    """Make files private that the umask made readable for others.

    A database that others may also write is shared on purpose. One that they may only read is of no use to them, since
    SQLite's readers write beside the file.
    """
    for path in paths:
        try:
            status = path.stat()
            if status.st_mode & _READABLE and not status.st_mode & _WRITABLE and status.st_uid == os.geteuid():
                path.chmod(FILE_MODE)
                log.warning("%s could be read by other users of this machine; now its owner alone can", path)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("other users of this machine may read %s: %s", path, error.strerror)


def of_database(path: Path) -> list[Path]:
    """Return the file of a SQLite database and those that SQLite keeps beside it."""
    return [path, *(path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm"))]


def open_log(path: Path) -> BinaryIO:
    """Open a file for appending, created if need be. Raises OSError."""
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags, FILE_MODE))


def prepare_data_root(root: str) -> None:
    """Create a data root on this machine as a private directory, if it does not exist.

    What qo writes below it is as open as the root, so that data is shared by opening this one directory. One that is
    open to everybody may be so on purpose: that is only logged. Raises OSError.
    """
    if not root.startswith("file:"):
        return
    path = local_path(root)
    make_directory(path)
    if _everybody_reaches(path):
        log.warning(
            "every user of this machine can read the data in %s; if that is not meant: chmod 700 %s", path, path
        )


def _everybody_reaches(path: Path) -> bool:
    if not path.stat().st_mode & stat.S_IROTH:
        return False
    return all(each.stat().st_mode & stat.S_IXOTH for each in (path, *path.absolute().parents))
