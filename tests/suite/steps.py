"""What ``make test`` and ``make prove`` consist of, and the same for one file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from suite.step import Step

ROOT = Path(__file__).parents[2]
PYTEST = (sys.executable, "-m", "pytest")
# Each process takes the next file of the order that suite.order makes; the last ones are short, so that all end at the
# same time.
IN_FILES = ("--dist", "loadfile", "--no-loadscope-reorder")
# Where all tests with the marker spark are, as a test sees to.
SPARK_FOLDERS = ("tests/e2e", "tests/spark")


def list_steps(shuffle: int | None) -> list[Step]:
    """In this order. Spark by itself: a JVM that starts takes the time that others' leases run."""
    return [
        Step("setup", ("make", "--no-print-directory", "-j", "2", "-O", "ui", "browser", "collect")),
        Step("lint", ("make", "--no-print-directory", "lint"), in_background=True),
        *list_test_steps(shuffle),
    ]


def list_test_steps(shuffle: int | None) -> list[Step]:
    """The tests alone, for repeated runs: what lint finds does not depend on the run."""
    order = order_options(shuffle)
    return [
        Step(
            "tests",
            (*PYTEST, "-n", "5", *IN_FILES, *order, "-m", "not spark and not long", "--ignore", "tests/spark"),
        ),
        Step("spark", (*PYTEST, "-n", "4", *IN_FILES, *order, "-m", "spark and not long", *SPARK_FOLDERS)),
    ]


def list_proofs() -> list[Step]:
    """What is too long for ``make test``, in parts that can be run by themselves, in this order."""
    many = {"PROVE": "1"}  # More seeds, examples and days in the same tests.
    drawn = (*PYTEST, "-n", "2", "--dist", "worksteal")
    longest = (*PYTEST, "-n", "2", *IN_FILES)
    fuzz = "tests/integration/test_dispatcher_http_fuzz.py"
    return [
        Step(
            "simulation",
            (*drawn, "-m", "not fast", "tests/simulation", "tests/conformance", fuzz),
            environment=many,
        ),
        Step("properties", (*drawn, "tests/property"), environment=many),
        Step(
            "processes",
            (*longest, "-m", "long and not spark", "--ignore", "tests/spark", "--ignore", "tests/simulation"),
            environment=many,
        ),
        Step("spark", (*longest, "-m", "long and spark", *SPARK_FOLDERS), environment=many),
        Step("newest", ("make", "--no-print-directory", "newest")),
        Step("chaos", ("make", "--no-print-directory", "chaos")),
    ]


def order_options(shuffle: int | None) -> Sequence[str]:
    """Files, and the tests of a file, in an order that the number decides; None: as they come."""
    if shuffle is None:
        return ()
    # The draws of the tests themselves stay as they are: names that are drawn must differ between tests.
    return ("-p", "randomly", f"--randomly-seed={shuffle}", "--randomly-dont-reset-seed")


def list_files() -> list[Path]:
    return sorted((ROOT / "tests").rglob("test_*.py"))


def file_step(path: Path) -> Step:
    """One file in a process of its own, with no other test beside it."""
    name = str(path.relative_to(ROOT))
    return Step(name, (*PYTEST, "-m", "not long", name), may_be_empty=True)
