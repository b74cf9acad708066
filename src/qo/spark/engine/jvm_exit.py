"""Why a JVM ended, from its exit code."""

from __future__ import annotations

import signal
import subprocess

EXIT_WAIT_S = 1.0  # Its connections are cut a moment before its process ends.
OUT_OF_MEMORY = 3  # The exit code of ExitOnOutOfMemoryError.


def exit_reason(process: subprocess.Popen[bytes] | None) -> str | None:
    """Return why a JVM ended, for people; None if that is not known, or it still runs."""
    if process is None:
        return None
    try:
        return exit_code_text(process.wait(EXIT_WAIT_S))
    except subprocess.TimeoutExpired:
        return None


def exit_code_text(code: int) -> str | None:
    """Return what the exit code of a JVM means, for people; None if it says nothing."""
    if code == OUT_OF_MEMORY:
        return "its JVM ran out of memory: give it more with spark.driver_memory, or run fewer tasks at a time"
    if code == -signal.SIGKILL:
        return "its JVM was killed with SIGKILL, as systems do that are short of memory"
    return f"its JVM was ended by {signal.Signals(-code).name}" if code < 0 else None
