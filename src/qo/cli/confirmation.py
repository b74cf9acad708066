"""Questions to a person on a terminal."""

from __future__ import annotations

import asyncio
import sys

from qo.cli.session import Session


def is_interactive(session: Session) -> bool:
    """Whether somebody is there who can answer."""
    return not session.json and sys.stdin.isatty() and sys.stdout.isatty()


async def confirm(question: str) -> bool:
    """Ask, and wait for a line; anything but y or yes is a no. Can be cancelled, and signals are served meanwhile."""
    sys.stdout.write(f"{question} [y/N] ")
    sys.stdout.flush()
    typed, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(sys.stdin, typed.set)  # A terminal has something to read when a whole line was typed.
    try:
        await typed.wait()
    finally:
        loop.remove_reader(sys.stdin)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
