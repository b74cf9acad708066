"""`python -m bench [suite ...] [--only figure ...]`. Speed never fails a run; a benchmark that breaks does."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from collections.abc import Sequence

from bench import page
from bench.harness import Family, Result, chosen, show, write

SUITES = {  # Each module has FAMILIES.
    "queue": "bench.queue.suite",
    "worker": "bench.worker.suite",
    "dispatcher": "bench.dispatcher.suite",
    "spark": "bench.spark.suite",
    "tables": "bench.tables.suite",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "suites", nargs="*", metavar="suite", help=f"which to run, all by default: {', '.join(SUITES)}"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="figure", help="measure only these figures")
    parser.add_argument("--page", action="store_true", help="measure nothing: write the page of what was measured")
    arguments = parser.parse_args()
    if arguments.page:
        print(page.written())
        return 0
    if unknown := [suite for suite in arguments.suites if suite not in SUITES]:
        parser.error(f"no suite {', '.join(unknown)}; there is {', '.join(SUITES)}")
    broken = False
    for suite in arguments.suites or SUITES:
        families: Sequence[Family] = importlib.import_module(SUITES[suite]).FAMILIES
        try:
            wanted = chosen(families, arguments.only)
        except KeyError as unknown:
            parser.error(unknown.args[0])
        broken |= _run(suite, wanted, whole=not arguments.only)
    print(f"the page is {page.written()}", file=sys.stderr)
    return 1 if broken else 0


def _run(suite: str, families: Sequence[Family], *, whole: bool) -> bool:
    """Measure and report; True if a measurement broke. The others are still taken."""
    results: list[Result] = []
    broken = False
    for family in families:
        began = time.perf_counter()
        try:
            results += family.measure()
        except Exception:
            broken = True
            traceback.print_exc()
            print(f"{suite}: {family.names[0]} BROKE", file=sys.stderr)
        else:
            print(f"{suite}: {family.names[0]}: {time.perf_counter() - began:.0f} s", file=sys.stderr)
            write(suite, results, whole=False)  # Who breaks it off keeps what was taken until then.
    show(suite, results)
    print(f"written to {write(suite, results, whole=whole)}", file=sys.stderr)
    return broken


if __name__ == "__main__":
    sys.exit(main())
