"""The local store among several processes, and when one of them is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from qo.store.local import LocalStore
from qo.store.sqlite_file import FILE

PROGRAM = Path(__file__).with_name("local_process.py")
MORE = 10 if os.environ.get("PROVE") else 1


@contextmanager
def process(role: str, directory: Path, *numbers: int) -> Iterator[subprocess.Popen[str]]:
    """A process at work on the store; what is left of it in the end is killed."""
    command = [sys.executable, "-W", "error", str(PROGRAM), role, str(directory), *map(str, numbers)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def lines_of_all(role: str, directory: Path, processes: int, *numbers: int) -> list[str]:
    """What all of them said, who opened the store at one time and began together."""
    with ExitStack() as stack:
        children = [stack.enter_context(process(role, directory, *numbers)) for _ in range(processes)]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n", child.communicate()[1]
        for child in children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        said: list[str] = []
        for child in children:
            output, errors = child.communicate()
            assert (child.returncode, errors) == (0, "")
            said += output.split()
        return said


async def test_processes_that_count_together_miss_nothing(tmp_path: Path) -> None:
    processes, keys, tasks, times = 4, 3, 4, 15 * MORE
    lines_of_all("count", tmp_path, processes, keys, tasks, times)
    store = await LocalStore.open(tmp_path)
    for key in range(keys):
        found = await store.get(f"count/{key}")
        assert found is not None
        assert int(found.body) == processes * tasks * times
        assert len(await store.versions(f"count/{key}")) == processes * tasks * times
    await store.close()


def test_of_32_claimers_in_four_processes_one_wins_each_round(tmp_path: Path) -> None:
    rounds = 100 * MORE
    wins = Counter(lines_of_all("claim", tmp_path, 4, 8, rounds))
    assert wins == Counter(str(number) for number in range(rounds))


async def test_every_acknowledged_write_survives_kill_9(tmp_path: Path) -> None:
    acked: list[int] = []
    for life in range(3 * MORE):
        acked += written_before_death(tmp_path, first=life * 1_000_000)
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    store = await LocalStore.open(tmp_path)
    for number in acked:
        found = await store.get(f"acked/{number}")
        assert found is not None, f"write {number} was acknowledged and is lost"
        assert found.body == b"%d" % number * 100
    await store.close()


def written_before_death(directory: Path, first: int) -> list[int]:
    with process("write", directory, first, 16) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.stdin.write("\n")
        child.stdin.flush()
        acked = [int(child.stdout.readline()) for _ in range(500)]
        os.kill(child.pid, signal.SIGKILL)
        # What it said between our last look and its death; a last line may have been cut short.
        rest = child.stdout.read()
        acked += [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
    assert child.returncode == -signal.SIGKILL
    return acked


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    # How long a step of the event loop took says more of the machine than of the code.
    done.stderr = "".join(line for line in done.stderr.splitlines(True) if not line.startswith("Executing <"))
    return done


def test_a_program_that_forgets_to_close_still_exits_and_keeps_its_writes(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from qo.store.local import LocalStore
async def main():
    global store
    store = await LocalStore.open(Path(sys.argv[1]))
    found = await store.get("a")
    await store.put("a", b"one")
    print(found and found.body)
asyncio.run(main())
"""
    first, second = run(script, str(tmp_path)), run(script, str(tmp_path))
    assert (first.returncode, first.stdout, first.stderr) == (0, "None\n", "")
    assert (second.returncode, second.stdout, second.stderr) == (0, "b'one'\n", "")


def test_a_store_opened_before_a_fork_says_so_in_the_child_and_works_on_in_the_parent(tmp_path: Path) -> None:
    script = """
import asyncio, os, signal, sys, warnings
from pathlib import Path
from qo.errors import UsageError
from qo.store.local import LocalStore
warnings.simplefilter("ignore", DeprecationWarning)  # Forking with threads: that is the point here.
async def ask(call):
    return await call()
store = asyncio.run(LocalStore.open(Path(sys.argv[1])))
child = os.fork()
signal.alarm(30)  # Whoever hangs ends, and fails the test.
try:
    asyncio.run(ask(lambda: store.put("a", b"one")))
except UsageError as error:
    os._exit(9 if "open it in the child" in str(error) else 1)
assert child, "the child wrote"
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
assert asyncio.run(ask(lambda: store.get("a"))) is not None
asyncio.run(store.close())
"""
    ended = run(script, str(tmp_path))
    assert (ended.returncode, ended.stderr) == (0, "")


def test_importing_the_store_loads_nothing_beyond_the_standard_library() -> None:
    script = """
import sys
before = set(sys.modules)  # Some systems have every interpreter load something of theirs.
import qo.store.local
loaded = {name.partition(".")[0] for name, module in sys.modules.items() if module and name not in before}
print(sorted(name for name in loaded - sys.stdlib_module_names if not name.startswith("_") and name != "qo"))
"""
    assert run(script).stdout == "[]\n"
