"""The figures of a run: shown as a table, and written to where benchmarks write theirs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.harness import Result, result, show, write

from chaos.monkey import Injected
from chaos.recovery import Recovery


@dataclass(frozen=True)
class Report:
    ground: str
    seed: int
    settings: Mapping[str, Any]
    counts: Mapping[str, int]  # What there was, by its name.
    injected: Sequence[Injected]
    recoveries: Sequence[Recovery]
    violations: Sequence[str] = field(default_factory=list)

    @property
    def results(self) -> list[Result]:
        common = {"ground": self.ground, "seed": self.seed, **self.settings}
        figures = [result(name, number, "", **common) for name, number in self.counts.items()]
        figures.append(result("faults", len(self.injected), "", **common))
        kinds = Counter(each.fault.kind for each in self.injected)
        figures += [result(f"faults: {kind}", number, "", **common) for kind, number in sorted(kinds.items())]
        figures.append(result("recoveries", len(self.recoveries), "", **common))
        if self.recoveries:
            longest = max(self.recoveries, key=lambda each: each.took_s)
            usual = statistics.median(each.took_s for each in self.recoveries)
            figures.append(result("recovery, median", usual, "s", **common))
            figures.append(result("recovery, longest", longest.took_s, "s", after=str(longest.fault), **common))
        figures.append(result("violations", len(self.violations), "", **common))
        return figures

    @property
    def _suite(self) -> str:
        return f"chaos-{self.ground}"

    def show(self) -> None:
        show(self._suite, self.results)

    def write(self) -> str:
        return str(write(self._suite, self.results, whole=True))
