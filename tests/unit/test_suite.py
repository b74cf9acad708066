"""The program behind make test: every step runs, and the end names what failed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from suite import __main__ as program
from suite.step import NO_TESTS, Step, run_step
from suite.steps import list_steps, order_options

pytestmark = pytest.mark.fast


def step(name: str, text: str, code: int, *, may_be_empty: bool = False) -> Step:
    return Step(name, (sys.executable, "-c", f"print({text!r}); raise SystemExit({code})"), may_be_empty)


def test_a_failing_step_does_not_keep_the_next_one_from_running_and_the_end_names_what_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [step("lint", "wrong", 2), step("tests", "FAILED a.py::b - c", 1), step("spark", "1 passed", 0)]

    def fixed(shuffle: int | None) -> Sequence[Step]:
        return steps

    monkeypatch.setattr(program, "list_steps", fixed)
    monkeypatch.setattr(sys, "argv", ["suite", "--shuffle", "7"])
    assert program.main() == 1
    printed = capsys.readouterr().out
    assert "--shuffle 7" in printed
    assert "1 passed" in printed
    assert printed.endswith("lint: ended with exit code 2\ntests: FAILED a.py::b - c\n2 failures, listed above\n")


def test_a_step_without_a_single_test_has_failed_unless_it_may_be_empty() -> None:
    assert not run_step(step("spark", "", NO_TESTS), quiet=True).ok
    assert run_step(step("a file", "", NO_TESTS, may_be_empty=True), quiet=True).ok


def test_an_order_follows_from_its_number_and_reaches_every_step_with_tests() -> None:
    assert order_options(None) == ()
    wanted = set(order_options(7))
    assert "--randomly-seed=7" in wanted
    assert [wanted <= set(each.command) for each in list_steps(7)] == [False, True, True]
