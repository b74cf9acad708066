"""The program behind make test: every step runs, and the end names what failed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from suite import __main__ as program
from suite.order import LONGEST, WAITING, mix_files
from suite.step import NO_TESTS, Step, run_step
from suite.steps import IN_FILES, PYTEST, ROOT, list_files, list_proofs, list_steps, list_test_steps, order_options

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
    monkeypatch.setattr(program, "start_class_archive", lambda: None)
    monkeypatch.setattr(sys, "argv", ["suite", "--shuffle", "7"])
    assert program.main() == 1
    printed = capsys.readouterr().out
    assert "--shuffle 7" in printed
    assert "1 passed" in printed
    assert printed.endswith("lint: ended with exit code 2\ntests: FAILED a.py::b - c\n2 failures, listed above\n")


def test_what_is_proved_has_a_name_by_which_it_runs_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [each.name for each in list_proofs()] == [
        "simulation",
        "properties",
        "processes",
        "spark",
        "newest",
        "chaos",
    ]
    parts = [step("simulation", "1 passed", 0), step("chaos", "FAILED", 1)]
    monkeypatch.setattr(program, "list_proofs", lambda: parts)
    monkeypatch.setattr(sys, "argv", ["suite", "--prove", "simulation"])
    assert program.main() == 0
    assert "chaos" not in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["suite", "--prove", "all"])
    assert program.main() == 1
    assert "chaos: FAILED in" in capsys.readouterr().out


def test_every_long_test_is_in_a_part_of_what_is_proved() -> None:
    """A test is long with Spark, long without it, or in a folder that is proved whole."""
    with_spark = [each for each in list_proofs() if "long and spark" in each.command]
    without = [each for each in list_proofs() if "long and not spark" in each.command]
    assert len(with_spark) == len(without) == 1
    left_out = {without[0].command[n + 1] for n, each in enumerate(without[0].command) if each == "--ignore"}
    assert left_out == {"tests/spark", "tests/simulation"}
    assert "tests/simulation" in list_proofs()[0].command


def test_a_step_in_the_background_runs_beside_those_that_follow_and_is_shown_after_them(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Each of the two waits for the other."""
    meet = "import sys, time; mine, other = map(__import__('pathlib').Path, sys.argv[1:]); mine.touch()\n"
    meet += "while not other.exists(): time.sleep(0.01)\nprint('met', mine.name)"
    paths = str(tmp_path / "lint"), str(tmp_path / "tests")
    steps = [
        Step("lint", (sys.executable, "-c", meet, *paths), in_background=True),
        Step("tests", (sys.executable, "-c", meet, *reversed(paths))),
    ]
    assert all(each.ok for each in program.run_steps(steps))
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("met")]
    assert shown == ["met tests", "met lint"]


def test_the_environment_of_a_step_reaches_its_command() -> None:
    shown = Step(
        "shown", (sys.executable, "-c", "import os; print(os.environ['PROVE'])"), environment={"PROVE": "7"}
    )
    assert run_step(shown, quiet=True).output == "7\n"


def test_a_step_without_a_single_test_has_failed_unless_it_may_be_empty() -> None:
    assert not run_step(step("spark", "", NO_TESTS), quiet=True).ok
    assert run_step(step("a file", "", NO_TESTS, may_be_empty=True), quiet=True).ok


def test_an_order_follows_from_its_number_and_reaches_every_step_with_tests() -> None:
    assert order_options(None) == ()
    wanted = set(order_options(7))
    assert "--randomly-seed=7" in wanted
    assert [wanted <= set(each.command) for each in list_steps(7)] == [False, False, True, True]


def test_repeated_runs_are_ordered_and_leave_out_what_no_order_changes() -> None:
    assert [each.name for each in list_test_steps(None)] == ["tests", "spark"]
    assert list_test_steps(7) == list_steps(7)[-2:]


def test_every_file_runs_alone_side_by_side_and_is_reported_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wrong, right = tmp_path / "test_a.py", tmp_path / "test_b.py"
    monkeypatch.setattr(program, "list_files", lambda: [wrong, right])
    monkeypatch.setattr(
        program,
        "file_step",
        lambda path: step(path.name, "FAILED test_a.py::x - y" if path == wrong else "1 passed", path == wrong),
    )
    assert [each.ok for each in program.run_alone()] == [False, True]
    shown = capsys.readouterr().out
    assert "test_a.py\nFAILED test_a.py::x - y" in shown
    assert "1 passed" not in shown


def test_a_test_that_ends_its_process_fails_and_all_others_run(tmp_path: Path) -> None:
    """Also those of the same file, and of files that the process would have run next."""
    (tmp_path / "conftest.py").write_text("from suite.scheduling import pytest_xdist_make_scheduler\n")
    plain = "".join(f"def test_{n}():\n    pass\n" for n in range(3))
    for number in range(12):
        (tmp_path / f"test_{number:02}.py").write_text(plain)
    fatal = "def test_fatal():\n    import os\n    os._exit(1)\n"
    # What is left of a file may be a single test.
    (tmp_path / "test_09.py").write_text(f"{plain}{fatal}def test_last():\n    pass\n")
    without = ("-p", "no:cacheprovider", "-p", "no:randomly")
    ended = subprocess.run(
        [*PYTEST, "-c", "/dev/null", *without, "-n", "2", *IN_FILES, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "1 failed, 37 passed" in ended.stdout, ended.stdout + ended.stderr
    assert "crashed while running 'test_09.py::test_fatal'" in ended.stdout


def test_the_longest_files_begin_first() -> None:
    files = list_files()
    assert set(LONGEST) <= {path.name for path in files}
    waiting = [path.name for path in mix_files(files) if path.parent.name in WAITING]
    assert tuple(waiting[: len(LONGEST)]) == LONGEST
