"""``python -m chaos``: one run, its figures, and 1 with the seed if any promise was broken."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from chaos.run import GROUNDS, run

SHOWN = 200


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long there are load and faults")
    parser.add_argument("--seed", type=int, default=1, help="what the faults are drawn from")
    parser.add_argument(
        "--ground", choices=list(GROUNDS), default="servers", help="PostgreSQL and S3, or files in a directory"
    )
    parser.add_argument("--without", choices=["spark"], action="append", default=[], help="leave this out")
    parser.add_argument("--keep", type=Path, help="an empty directory for all files; they are kept")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qo-chaos-", ignore_cleanup_errors=True) as temporary:
        directory = (chosen.keep or Path(temporary)).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        spark = "spark" not in chosen.without
        seconds = 60 * chosen.minutes
        report = asyncio.run(
            run(directory, seed=chosen.seed, seconds=seconds, spark=spark, say=_say, on=chosen.ground)
        )
    report.show()
    _say(f"written to {report.write()}")
    for each in report.violations[:SHOWN]:
        print(f"VIOLATED  {each}")
    if report.violations:
        print(f"{len(report.violations)} violations with --ground {chosen.ground} --seed {chosen.seed}")
    return 1 if report.violations else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
