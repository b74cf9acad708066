"""``python -m soak``: steady load for hours, figures at start and end, and 1 if anything has grown."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.harness import Result, result, show, write

from soak.run import EACH_S, EVENTS, run_embedded, run_servers
from soak.verdict import Figure

GROUNDS = {"servers": run_servers, "embedded": run_embedded}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=2.0, help="how long there is load")
    parser.add_argument(
        "--ground", choices=sorted(GROUNDS), default="embedded", help="PostgreSQL and S3, or neither"
    )
    parser.add_argument("--keep", type=Path, help="an empty directory for all files; they are kept")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qo-soak-", ignore_cleanup_errors=True) as temporary:
        directory = (chosen.keep or Path(temporary)).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        figures = asyncio.run(GROUNDS[chosen.ground](directory, 3600 * chosen.hours, _report))
    results = list_results(figures, chosen.hours, chosen.ground)
    show("soak", results)
    _report(f"written to {write('soak', results, whole=True)}")
    grown = [each for each in figures if not each.flat]
    for each in grown:
        print(f"GROWN  {each.name}: {each.start:.3g} {each.unit} at first, {each.end:.3g} at the end")
    return 1 if grown else 0


def list_results(figures: Sequence[Figure], hours: float, ground: str) -> list[Result]:
    common = {"hours": hours, "ground": ground, "events_per_s": EVENTS / EACH_S}
    found: list[Result] = []
    for each in figures:
        found.append(result(f"{each.name}, start", each.start, each.unit, **common))
        found.append(result(f"{each.name}, end", each.end, each.unit, limit=each.limit, **common))
    return found


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
