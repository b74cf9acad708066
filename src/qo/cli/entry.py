"""Where the program ``qo`` begins: before anything is loaded that takes its time, so that Ctrl+C ends it quietly."""

from __future__ import annotations

import gc
import os
import signal
from types import FrameType

EXIT_INTERRUPTED = 130
# Modules that are loaded make hundreds of thousands of objects and no cycles to collect: with Python's own numbers a
# fifth of the start goes into looking for some.
COLLECT_AFTER = (10_000, 20, 100)


def main() -> int:
    """Run the command that the command line names; the answer is the exit code."""
    before = signal.getsignal(signal.SIGINT)
    # One that is ignored stays so: a shell that starts us in the background wants that.
    ours = before is signal.default_int_handler
    if ours:
        # Nothing has been done yet that would have to be undone; an exception would show where it met us.
        signal.signal(signal.SIGINT, _leave)
    gc.set_threshold(*COLLECT_AFTER)
    from qo.cli.main import main as run

    if ours:
        signal.signal(signal.SIGINT, before)
    return run()


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)
