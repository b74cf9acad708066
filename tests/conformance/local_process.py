"""What one process does in the tests of the local store: ``python local_process.py ROLE DIRECTORY ...``.

Each opens the store, says so, waits for a line on its standard input so that all begin together, and works.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from qo.errors import PreconditionFailed
from qo.store.local import LocalStore


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def count(store: LocalStore, keys: int, tasks: int, times: int) -> None:
    """Add one to each of ``keys`` counters, ``times`` times in each of ``tasks`` tasks."""

    async def increment(key: str) -> None:
        while True:
            found = await store.get(key)
            body = b"%d" % (int(found.body) + 1 if found else 1)
            try:
                await store.put(key, body, if_match=found.etag if found else None, if_absent=found is None)
            except PreconditionFailed:
                continue
            return

    async def task() -> None:
        for number in range(times * keys):
            await increment(f"count/{number % keys}")

    await asyncio.gather(*(task() for _ in range(tasks)))


async def claim(store: LocalStore, tasks: int, rounds: int) -> None:
    """Say which rounds were won."""

    async def task() -> None:
        for number in range(rounds):
            try:
                await store.put(f"claim/{number}", b"mine", if_absent=True)
            except PreconditionFailed:
                continue
            say(str(number))

    await asyncio.gather(*(task() for _ in range(tasks)))


async def write(store: LocalStore, first: int, tasks: int) -> None:
    """Write until killed, and say each key once its write is acknowledged."""

    async def task(mine: int) -> None:
        for number in range(first + mine, sys.maxsize, tasks):
            await store.put(f"acked/{number}", b"%d" % number * 100, if_absent=True)
            say(str(number))

    await asyncio.gather(*(task(mine) for mine in range(tasks)))


async def main() -> None:
    role, directory, *numbers = sys.argv[1:]
    store = await LocalStore.open(Path(directory))
    say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    await {"count": count, "claim": claim, "write": write}[role](store, *map(int, numbers))
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
