"""The entry point of the program ``qo``. It loads nothing slow itself, so that Ctrl+C ends the start quietly."""

from __future__ import annotations

import gc
import os
import signal
from types import FrameType

EXIT_INTERRUPTED = 130
# Loading modules creates hundreds of thousands of objects and hardly any garbage; with Python's default thresholds a
# fifth of the start-up time goes into looking for some.
GC_THRESHOLDS = (10_000, 20, 100)


def main() -> int:
    """Run the command that the command line names, and return its exit code."""
    before = signal.getsignal(signal.SIGINT)
    # An ignored signal stays ignored: that is how a shell starts programs in the background.
    is_default = before is signal.default_int_handler
    if is_default:
        # There is nothing to undo yet, and a KeyboardInterrupt here would print a traceback.
        signal.signal(signal.SIGINT, _exit_interrupted)
    gc.set_threshold(*GC_THRESHOLDS)
    from qo.cli.main import main as run

    if is_default:
        signal.signal(signal.SIGINT, before)
    return run()


def _exit_interrupted(number: int, frame: FrameType | None) -> None:
    os._exit(EXIT_INTERRUPTED)
