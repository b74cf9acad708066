"""Where a function runs: in a sandbox of this machine, or as a plain process.

A sandboxed function sees programs of the system, Python, its code and the paths to read, all of them read-only; the
paths to write, and a private /tmp; no other process or file, and no network unless it is allowed. Two ways lead there:

    bubblewrap    the program ``bwrap``, where it is installed
    namespaces    the kernel's own, by ``namespace_init``; the first choice of root, who then becomes nobody

Which of them works is found out by running one: kernels and containers forbid either in many ways.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from qo.errors import Refused

CODE, TMP = "/code", "/tmp"
TMP_SIZE = "512m"
PROBE_S = 20.0
SETUP_FAILED = 125  # The exit status of a sandbox that could not be set up.
# Of /etc a program needs what resolves libraries, names, time and certificates; the rest belongs to the machine.
_ETC = ("alternatives", "ca-certificates", "ld.so.cache", "ld.so.conf", "localtime", "nsswitch.conf", "pki", "ssl")
_ETC_NETWORK = ("hosts", "resolv.conf", "services")
_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "usr")


@dataclass(frozen=True, slots=True)
class Access:
    """What a function may see beyond its code: directories to read, directories to write, the network."""

    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    network: bool = False


class Sandbox(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def confines(self) -> bool:
        """Whether a function is kept from the files and processes of its user."""
        ...

    def code_path(self, code: Path) -> Path:
        """Return where the function finds its code."""
        ...

    def work_path(self, home: Path) -> Path:
        """Return the working directory of the function, which is private to it."""
        ...

    def wrap(self, command: Sequence[str], home: Path, access: Access) -> list[str]:
        """Return the command that runs a command inside. The code is in ``home / "code"``."""
        ...


class PlainProcess:
    """No sandbox: a process with all rights of its user."""

    name, confines = "none", False

    def code_path(self, code: Path) -> Path:
        return code

    def work_path(self, home: Path) -> Path:
        return home / "work"

    def wrap(self, command: Sequence[str], home: Path, access: Access) -> list[str]:
        return list(command)


class _Confined:
    confines = True

    def code_path(self, code: Path) -> Path:
        return Path(CODE)

    def work_path(self, home: Path) -> Path:
        return Path(TMP)


class Namespaces(_Confined):
    """The kernel's namespaces."""

    name = "namespaces"

    def wrap(self, command: Sequence[str], home: Path, access: Access) -> list[str]:
        root = home / "root"
        root.mkdir(mode=0o700, exist_ok=True)
        plan = {
            "root": str(root),
            "links": [[os.readlink(path), str(path)] for path in _top_level() if path.is_symlink()],
            "system": [str(each) for each in _system_paths(access.network)],
            "read": [[str(home / "code"), CODE], *([str(each), str(each)] for each in access.read)],
            "write": [[str(each), str(each)] for each in access.write],
            "network": access.network,
            "tmp_size": TMP_SIZE,
            "directory": TMP,
            "command": list(command),
        }
        script = Path(__file__).with_name("namespace_init.py")
        return [interpreter(), "-I", "-S", "-B", "-X", "utf8", str(script), json.dumps(plan)]


class Bubblewrap(_Confined):
    """The program ``bwrap``."""

    name = "bubblewrap"

    def __init__(self, program: str = "bwrap") -> None:
        self._program = program

    def wrap(self, command: Sequence[str], home: Path, access: Access) -> list[str]:
        argv = [self._program, "--unshare-all", "--die-with-parent", "--cap-drop", "ALL"]
        argv += ["--uid", "65534", "--gid", "65534"]
        if access.network:
            argv.append("--share-net")
        for path in _top_level():
            if path.is_symlink():
                argv += ["--symlink", os.readlink(path), str(path)]
        for path in _system_paths(access.network):
            argv += ["--ro-bind", str(path), str(path)]
        argv += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", TMP, "--ro-bind", str(home / "code"), CODE]
        for path in access.read:
            argv += ["--ro-bind", str(path), str(path)]
        for path in access.write:
            argv += ["--bind", str(path), str(path)]
        return [*argv, "--chdir", TMP, "--", *command]


def interpreter() -> str:
    """Return the path of the Python that functions run with: that of the installation, never of a virtualenv."""
    return os.path.realpath(sys.executable)


def find_sandbox() -> Sandbox:
    """Return the sandbox that works here. Raises Refused, with the reason of each that does not."""
    sandbox, reasons = _examine()
    if sandbox is None:
        raise Refused(f"this machine offers no sandbox for functions ({'; '.join(reasons)})")
    return sandbox


@cache
def _examine() -> tuple[Sandbox | None, tuple[str, ...]]:
    """Try each sandbox once. What a kernel allows does not change while it runs."""
    reasons: list[str] = []
    program = which_bubblewrap()
    candidates: list[Sandbox] = [Namespaces()]
    if program is None:
        reasons.append("bubblewrap: bwrap is not installed")
    else:
        # Root can become another user by itself; inside bubblewrap it would stay root to the files it sees.
        candidates.insert(1 if os.geteuid() == 0 else 0, Bubblewrap(program))
    for each in candidates:
        reason = probe(each)
        if reason is None:
            return each, tuple(reasons)
        reasons.append(f"{each.name}: {reason}")
    return None, tuple(reasons)


def which_bubblewrap() -> str | None:
    return shutil.which("bwrap")


_PROBE = "import os, sys; sys.exit(any(map(os.path.exists, sys.argv[1:3])) or not os.path.exists(sys.argv[3]))"


def probe(sandbox: Sandbox) -> str | None:
    """Run a program in the sandbox that looks for a file outside; return why it cannot be trusted, or None."""
    with tempfile.TemporaryDirectory(prefix="qo-probe-") as directory:
        home = Path(directory).resolve()
        (home / "code").mkdir()
        (home / "code" / "inside").touch()
        (home / "outside").touch()
        paths = (home / "outside", "/etc/passwd", f"{CODE}/inside")
        command = [interpreter(), "-I", "-S", "-c", _PROBE, *map(str, paths)]
        try:
            ended = subprocess.run(
                sandbox.wrap(command, home, Access()),
                env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PROBE_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    if ended.returncode == 0:
        return None
    text = ended.stderr.decode("utf-8", "replace").strip()
    return text.splitlines()[-1] if text else f"it ended with status {ended.returncode}"


def _top_level() -> list[Path]:
    return [path for name in _TOP if (path := Path("/", name)).exists()]


def _system_paths(network: bool) -> list[Path]:
    """Return what programs need of this machine, read-only: no home, no /var, of /etc next to nothing."""
    paths = [path for path in _top_level() if not path.is_symlink()]
    names = (*_ETC, *_ETC_NETWORK) if network else _ETC
    paths += [path for name in names if (path := Path("/etc", name)).exists()]
    prefix = Path(sys.base_prefix).resolve()
    if not any(prefix.is_relative_to(each) for each in paths):
        paths.append(prefix)
    return paths
