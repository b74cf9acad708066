"""The simulation finds bugs: each that is planted is found within 200 seeds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from simulation.engine.mutants import MUTANTS
from simulation.engine.playing import command, play
from simulation.engine.shrinking import shrink

WITHIN = 200
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    """From a seed on that is known to find it: others need not be tried each time."""
    _found(name, MUTANTS[name].first)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found_by_one_of_the_first_seeds(name: str) -> None:
    _found(name, 0)


def _found(name: str, first: int) -> None:
    mutant = MUTANTS[name]
    with mutant.planted():
        for seed in range(first, WITHIN):
            if (failure := play(mutant.part, seed).failure) is not None:
                print(f"{name}: found by seed {seed} of {mutant.part}, from {first} on: {str(failure)[:200]}")
                return
    pytest.fail(f"{name} was not found by the seeds from {first} to {WITHIN} of {mutant.part}")


def test_leaving_out_faults_leaves_those_that_it_takes() -> None:
    def fails(only: object) -> bool:
        return {"c", "f"} <= set(only)  # type: ignore[call-overload]

    assert shrink(list("abcdefghij"), fails) == ["c", "f"]
    assert shrink(list("abc"), lambda only: True) == []
    assert shrink(["a"], lambda only: "a" in only) == ["a"]


def test_a_seed_that_fails_is_replayed_and_shrunk_by_one_command() -> None:
    """With a bug planted that takes a fault to matter. The command that it prints in the end fails as well."""
    name = "ack-before-children"
    mutant = MUTANTS[name]
    told = _run(command(mutant.part, mutant.first, mutant=name) + " --tries 4")
    assert told.returncode == 1, told.stderr
    kept, _, struck = told.stdout.partition(" of its ")
    assert 0 < int(kept.split()[-1]) < int(struck.split()[0]), told.stdout
    assert _run(told.stdout.split("Step by step: ")[1]).returncode == 1


def _run(typed: str) -> subprocess.CompletedProcess[str]:
    path, _, *arguments = typed.split()
    assert path == "PYTHONPATH=tests"
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={"PYTHONPATH": "tests", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
