"""The first process of a sandbox of namespaces. Run as a script, with a plan as its only argument.

    1. leave the namespaces of the caller: mounts, processes, IPC, host name, network, and users unless it is root
    2. build a root in memory of the paths in the plan, and make it the only one there is
    3. give up every right, and start the command; end as it ends

A root that starts this needs no namespace of users: it becomes nobody instead, which is stronger. Everybody else is
nobody inside, and outside the user that it was.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import signal
import sys
from contextlib import suppress
from typing import Any

NOBODY = 65534
_NEWNS, _NEWUTS, _NEWIPC = 0x0002_0000, 0x0400_0000, 0x0800_0000
_NEWUSER, _NEWPID, _NEWNET = 0x1000_0000, 0x2000_0000, 0x4000_0000
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT = 1, 2, 4, 8, 32
_BIND, _REC, _PRIVATE, _DETACH = 4096, 16384, 1 << 18, 2
# Flags of a mount that a namespace of users must not clear, as statvfs returns them and as mount takes them.
_LOCKED_FLAGS = {2: 2, 4: 4, 8: 8, 1024: 1024, 2048: 2048, 4096: 1 << 21}
_PDEATHSIG, _NO_NEW_PRIVS = 1, 38
_CAPABILITY_VERSION_3 = 0x2008_0522
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_DEVICES = ("null", "zero", "full", "random", "urandom")
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, doing: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{doing}: {os.strerror(number)}")


def mount(
    source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str | None = None
) -> None:
    encoded = [None if each is None else os.fsencode(each) for each in (source, target, kind, data)]
    check(libc.mount(*encoded[:3], ctypes.c_ulong(flags), encoded[3]), f"mount {target}")


def make_target(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if not os.path.exists(target):
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))


def bind(source: str, target: str, *, writable: bool, device: bool = False) -> None:
    make_target(source, target)
    mount(source, target, flags=_BIND | _REC)
    for point in mounts_below(target):
        flags = os.statvfs(point).f_flag
        locked = sum(mount_flag for flag, mount_flag in _LOCKED_FLAGS.items() if flags & flag)
        own = _NOSUID | (0 if device else _NODEV) | (0 if writable else _RDONLY)
        mount(None, point, flags=_BIND | _REMOUNT | locked | own)


def mounts_below(target: str) -> list[str]:
    """Return the mount points at and below a path: a mount that is bound brings those below it along."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        lines = file.read().splitlines()
    points = [line.split(" ")[4].replace("\\040", " ").replace("\\134", "\\") for line in lines]
    return [each for each in dict.fromkeys(points) if each == target or each.startswith(target + "/")]


def build_root(plan: dict[str, Any]) -> None:
    root = plan["root"]
    mount(None, "/", flags=_REC | _PRIVATE)  # Nothing of what follows is seen outside.
    mount("tmpfs", root, "tmpfs", _NOSUID | _NODEV, "mode=755,size=1m")
    for source, target in plan["links"]:
        os.symlink(source, root + target)
    for path in plan["system"]:
        bind(path, root + path, writable=False)
    for name in ("proc", "dev", "tmp"):
        os.mkdir(f"{root}/{name}")
    for name in _DEVICES:
        bind(f"/dev/{name}", f"{root}/dev/{name}", writable=True, device=True)
    for name, target in _LINKS.items():
        os.symlink(target, f"{root}/dev/{name}")
    os.mkdir(f"{root}/dev/shm")
    for path, size in (("dev/shm", "64m"), ("tmp", plan["tmp_size"])):
        mount("tmpfs", f"{root}/{path}", "tmpfs", _NOSUID | _NODEV, f"mode=1777,size={size}")
    with suppress(OSError):  # Some containers forbid it. Without it a function sees even less.
        mount("proc", f"{root}/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    for source, target in plan["read"]:
        bind(source, root + target, writable=False)
    for source, target in plan["write"]:
        bind(source, root + target, writable=True)
    os.chdir(root)
    pivot_root()
    check(libc.umount2(b".", _DETACH), "leave the old root")
    mount(None, "/", flags=_BIND | _REMOUNT | _NOSUID | _NODEV | _RDONLY)
    os.chdir(plan["directory"])


def pivot_root() -> None:
    """Make the working directory the root, with the old root mounted over it."""
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(f"the sandbox does not know the system calls of {platform.machine()}")
    check(libc.syscall(number, b".", b"."), "pivot_root")


def map_users(user: int, group: int) -> None:
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{NOBODY} {user} 1"),
        ("gid_map", f"{NOBODY} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def give_up_rights(as_root: bool) -> None:
    if as_root:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    else:
        with suppress(OSError), open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("0")  # Of this namespace: no other one can be made inside.
    header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    check(libc.capset(header, nothing), "give up capabilities")
    check(libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "forbid new rights")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    check(libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "end with the caller")


def wait_for(child: int) -> int:
    """Reap everything until the child has ended; return its status as a shell would."""
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def main() -> None:
    plan = json.loads(sys.argv[1])
    user, group = os.geteuid(), os.getegid()
    as_root = user == 0
    check(libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "end with the caller")
    flags = _NEWNS | _NEWPID | _NEWIPC | _NEWUTS
    flags |= (0 if plan["network"] else _NEWNET) | (0 if as_root else _NEWUSER)
    check(libc.unshare(flags), "leave the namespaces of the caller")
    if not as_root:
        map_users(user, group)
    first = os.fork()
    if first:
        os._exit(wait_for(first))
    build_root(plan)
    give_up_rights(as_root)
    child = os.fork()  # The first process of a namespace ignores signals, so the command is the second.
    if child:
        for descriptor in (0, 1, 2):
            os.close(descriptor)  # So that a command that closes its output has closed it.
        os._exit(wait_for(child))
    os.execvp(plan["command"][0], plan["command"])


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.stderr.write(f"the sandbox could not be set up: {error.strerror or error}\n")
        sys.stderr.flush()
        os._exit(125)
