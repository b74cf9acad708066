"""Whether the share of qo grows with the data: ten times the rows in each partition, ten times the partitions."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.harness import Family, Result, Target, by_turns, median, result
from bench.spark import sessions, work
from bench.spark.ground import SLOTS, SMALL, Installation
from bench.spark.talking import Partner

ROUNDS = 3
WARM = 60
FEW = 20
SHORT = 20_000  # Rows.
NOISE = 0.05  # Shares below this are taken for this much: they differ by chance.


@dataclass(frozen=True)
class Size:
    partitions: int
    rows: int
    repeated: int = 1  # How often in a round: a short measurement is taken more often.


def sizes(few: int, short: int) -> dict[str, Size]:
    return {
        "1x": Size(few, short, 3),
        "rows_10x": Size(few, 10 * short, 2),
        "partitions_10x": Size(10 * few, short),
    }


class Contest:
    """Every size by both sides, each time with files of its own."""

    def __init__(self, qo: Installation, bare: Partner, home: Path) -> None:
        self._qo, self._bare, self._home = qo, bare, home
        self._turn = 0

    def share(self, size: Size) -> float:
        """The part of the time through qo that the script does not take."""
        bare_s = qo_s = 0.0
        for _ in range(size.repeated):
            self._turn += 1
            files = work.written(self._home / f"in-{self._turn}", size.partitions, size.rows)
            asked = {"sources": [str(path) for path in files], "target": f"{self._home}/out-{self._turn}"}
            bare_s += float(self._bare.ask("small", **asked)["seconds"])
            qo_s += self._qo.small(files)
        return (qo_s - bare_s) / qo_s


def measure(few: int = FEW, short: int = SHORT, rounds: int = ROUNDS, warm: int = WARM) -> Iterator[Result]:
    chosen = sizes(few, short)
    with (
        tempfile.TemporaryDirectory(prefix="qo-bench-") as directory,
        Installation(SMALL) as qo,
        Partner("bench.spark.bare") as bare,
    ):
        bare.ask("open", **sessions.told(), threads=SLOTS)
        contest = Contest(qo, bare, Path(directory))
        contest.share(Size(warm, short))
        runs = by_turns(rounds, *(lambda size=size: contest.share(size) for size in chosen.values()))
    by_size = dict(zip(chosen, runs, strict=True))
    shares = {name: median(of_size) for name, of_size in by_size.items()}
    for name in ("rows_10x", "partitions_10x"):
        yield result(
            f"scale_{name}",
            max(shares[name], NOISE),
            "share",
            baseline=max(shares["1x"], NOISE),
            target=Target("ratio", "<=", 1.1),
            of=by_size[name],
            baseline_of=by_size["1x"],
            partitions=chosen[name].partitions,
            rows=chosen[name].rows,
            rounds=rounds,
            note=f"(time through qo - by a script) / time through qo, at least {NOISE}; baseline: {few} x {short} rows",
            slots=SLOTS,
            **sessions.described(),
        )


FAMILIES = [Family(["scale_rows_10x", "scale_partitions_10x"], measure)]
