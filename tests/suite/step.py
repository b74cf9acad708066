"""One command of the suite: its output goes to the terminal as it comes, and what failed is kept."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

FAILURE_MARKS = ("FAILED ", "ERROR ")  # How pytest's summary names a test that failed.
NO_TESTS = 5  # Pytest's exit code where the marker leaves none of a file.


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    command: Sequence[str]
    # A file whose tests are all left out by their marks is no failure; a whole step is.
    may_be_empty: bool = False
    environment: Mapping[str, str] = field(default_factory=dict[str, str])  # Beside what is set already.
    # At a low priority beside the steps that follow, which wait here and there; its output comes in the end.
    in_background: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    name: str
    code: int
    failures: tuple[str, ...]
    wall_s: float
    output: str

    @property
    def ok(self) -> bool:
        return self.code == 0

    def lines(self) -> list[str]:
        """What failed, in one line each. A command that ended badly without naming a test counts as one failure."""
        if self.ok:
            return []
        return [f"{self.name}: {each}" for each in self.failures or (f"ended with exit code {self.code}",)]


def run_step(step: Step, *, quiet: bool = False) -> Result:
    """Run it to its end. ``quiet`` keeps the output for the caller instead of showing it."""
    began = time.monotonic()
    failures: list[str] = []
    output: list[str] = []
    inherited = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    }  # It led to this package.
    with subprocess.Popen(
        ("nice", *step.command) if step.in_background else step.command,
        env={**inherited, **step.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            if not quiet:
                sys.stdout.write(line)
                sys.stdout.flush()
            if line.startswith(FAILURE_MARKS):
                failures.append(line.strip())
        code = process.wait()
    return Result(
        step.name,
        0 if code == NO_TESTS and step.may_be_empty else code,
        tuple(failures),
        time.monotonic() - began,
        "".join(output),
    )
