"""What every suite shares: a result, its target, the table, and the file it is written to."""

from __future__ import annotations

import json
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from rich.console import Console
from rich.table import Table

from bench import machine

RESULTS = Path(__file__).parent / "results"

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge}

_NOTHING: Mapping[str, Any] = {"machines": {}, "figures": []}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure should reach. Missing it is shown and recorded; it never fails a run."""

    of: Literal["value", "ratio"]
    comparison: Literal["<=", ">="]
    bound: float

    def __str__(self) -> str:
        return f"{self.comparison} {self.bound:g}"

    def reached(self, number: float | None) -> bool:
        return number is not None and _COMPARISONS[self.comparison](number, self.bound)


@dataclass(frozen=True, slots=True)
class Result:
    """One figure, as it goes into the file. ``baseline`` is the other side, measured in the same way; ``runs`` and
    ``baseline_runs`` are what each round said, where the figure is their median."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    ratio: float | None = None
    runs: Sequence[float] = ()
    baseline_runs: Sequence[float] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


def result(
    name: str,
    value: float,
    unit: str,
    *,
    baseline: float | None = None,
    target: Target | None = None,
    of: Iterable[float] = (),
    baseline_of: Iterable[float] = (),
    **settings: Any,
) -> Result:
    """A result whose ratio is value over baseline, and whose settings say if the target was reached. ``of`` and
    ``baseline_of``: the rounds that both are the medians of."""
    ratio = value / baseline if baseline else None
    if target is not None:
        number = value if target.of == "value" else ratio
        settings |= {"target": str(target), "target_of": target.of, "reached": target.reached(number)}
    rounds, others = ([_rounded(each) for each in side] for side in (of, baseline_of))
    return Result(name, _rounded(value), unit, _rounded(baseline), _rounded(ratio), rounds, others, settings)


@dataclass(frozen=True, slots=True)
class Family:
    """Figures that one measurement yields together. Asking for one of them runs the measurement."""

    names: Sequence[str]
    measure: Callable[[], Iterable[Result]]


def chosen(families: Sequence[Family], only: Sequence[str]) -> list[Family]:
    """The families that yield any of the figures named; all if none is. Raises KeyError for an unknown name."""
    known = {name for family in families for name in family.names}
    if unknown := [name for name in only if name not in known]:
        raise KeyError(f"no figure {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return [family for family in families if not only or set(only) & set(family.names)]


def by_turns(rounds: int, *sides: Callable[[], T]) -> list[list[T]]:
    """Run all sides once per round, so that a slow moment of the machine hits every side. One list per side."""
    runs = [[side() for side in sides] for _ in range(rounds)]
    return [list(of_side) for of_side in zip(*runs, strict=True)]


def median(numbers: Iterable[float]) -> float:
    return statistics.median(numbers)


def read_settings(suite: str) -> dict[str, Mapping[str, Any]]:
    """Return the settings of each figure in the suite's file, by name."""
    return {each["name"]: each["settings"] for each in _read(RESULTS / f"{suite}.json")["figures"]}


def write(suite: str, results: Sequence[Result], *, whole: bool) -> Path:
    """Write the suite's results. Unless the whole suite was run, the file keeps what it says of other figures."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{suite}.json"
    before = _read(path) if not whole else _NOTHING
    on = machine.described()
    when = f"{on['taken_on']} {on['commit']}"
    fresh = {each.name: {**asdict(each), "on": when} for each in results}
    kept = {old["name"]: fresh.pop(old["name"], old) for old in before["figures"]}
    figures = [*kept.values(), *fresh.values()]
    machines = {**before["machines"], when: on}
    used = {name: machines[name] for name in sorted({each["on"] for each in figures})}
    path.write_text(json.dumps({"machines": used, "figures": figures}, indent=2) + "\n")
    return path


def show(suite: str, results: Sequence[Result]) -> None:
    table = Table(title=suite, title_justify="left")
    for column in ("figure", "value", "unit", "baseline", "ratio", "target", ""):
        table.add_column(column, justify="left" if column in ("figure", "unit", "target", "") else "right")
    for each in results:
        target = f"{each.settings['target_of']} {each.settings['target']}" if "target" in each.settings else ""
        verdict = {True: "reached", False: "MISSED", None: ""}[each.settings.get("reached")]
        numbers = (text(each.value), each.unit, text(each.baseline), text(each.ratio))
        table.add_row(each.name, *numbers, target, verdict)
    console = Console()
    # A file or a pipe is no reason to cut the columns.
    Console(width=max(console.width, 130)).print(table)


def _read(path: Path) -> Mapping[str, Any]:
    return json.loads(path.read_text()) if path.exists() else _NOTHING


def _rounded(number: float | None) -> Any:
    return None if number is None else float(f"{number:.4g}")


def text(number: float | None) -> str:
    if number is None:
        return ""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"
