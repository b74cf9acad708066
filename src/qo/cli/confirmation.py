"""Yes-or-no questions on a terminal."""

from __future__ import annotations

import asyncio
import sys

from qo.cli.invocation import Session


def is_interactive(session: Session) -> bool:
    """Return whether the command runs on a terminal, so that its user can answer."""
    return not session.json and sys.stdin.isatty() and sys.stdout.isatty()


async def confirm(question: str) -> bool:
    """Ask the question and read the answer; anything but y or yes means no.

    It does not block the event loop, so that it can be cancelled and signals are handled meanwhile.
    """
    sys.stdout.write(f"{question} [y/N] ")
    sys.stdout.flush()
    line_ready, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(sys.stdin, line_ready.set)  # A terminal becomes readable when a whole line was typed.
    try:
        await line_ready.wait()
    finally:
        loop.remove_reader(sys.stdin)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
