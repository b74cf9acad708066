"""Replay a seed; if it fails, find the few faults that it takes.

python -m simulation.engine queue --seed 41                    one seed
python -m simulation.engine worker --seeds 0-999               many, up to the first that fails
python -m simulation.engine worker --seed 3 --mutant no-fence  with a bug planted
python -m simulation.engine dispatcher --seed 3 --postgres     on a PostgreSQL that is started for it
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from simulation.engine.dispatcher import STEPS
from simulation.engine.mutants import MUTANTS
from simulation.engine.playing import PARTS, OnPostgres, command, play
from simulation.engine.shrinking import TRIES_MAX, shrink
from support.servers.postgres import SETTINGS, start_postgres


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    logging.disable(logging.NOTSET if asked.trace else logging.CRITICAL)
    only = None if asked.only is None else [each for each in asked.only.split(",") if each]
    first, _, last = (asked.seed or asked.seeds).partition("-")
    planted = MUTANTS[asked.mutant].planted() if asked.mutant else nullcontext()
    with planted, nullcontext() if asked.postgres is None else _postgres(asked.postgres) as postgres:
        for seed in range(int(first), int(last or first) + 1):
            played = play(asked.part, seed, only, loud=asked.trace, postgres=postgres)
            if played.failure is not None:
                return _told(asked, seed, list(played.struck), played.failure, postgres)
            print(f"seed {seed}: well, {len(played.struck)} faults, trace {played.digest}")
    return 0


@contextmanager
def _postgres(steps: int) -> Iterator[OnPostgres]:
    """Without what gathers statistics whenever it likes: other plans return rows in another order."""
    with TemporaryDirectory(prefix="qo-postgres-") as directory:
        server = start_postgres(Path(directory), (*SETTINGS, "autovacuum=off"))
        try:
            yield OnPostgres(server, steps)
        finally:
            server.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="simulation.engine", description="Production code under faults that a seed draws."
    )
    parser.add_argument("part", choices=PARTS)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", help="one seed")
    which.add_argument("--seeds", help="from and to, as 0-199: up to the first that fails")
    parser.add_argument(
        "--only", help="the names of the faults that may strike, with commas; the seed draws others"
    )
    parser.add_argument("--mutant", choices=MUTANTS, help="plant a bug first")
    parser.add_argument(
        "--postgres",
        nargs="?",
        type=int,
        const=STEPS,
        metavar="STEPS",
        help="run the dispatcher on PostgreSQL, with so many steps",
    )
    parser.add_argument("--trace", action="store_true", help="print everything that happens, and what is logged")
    parser.add_argument(
        "--tries", type=int, default=TRIES_MAX, help="how many runs to spend on leaving out faults"
    )
    return parser


def _told(
    asked: argparse.Namespace,
    seed: int,
    struck: list[str],
    failure: BaseException,
    postgres: OnPostgres | None,
) -> int:
    print(f"seed {seed}: {_line(failure)}")

    def fails(only: Sequence[str]) -> bool:
        return play(asked.part, seed, only, postgres=postgres).failure is not None

    if not asked.trace:
        kept = shrink(struck, fails, asked.tries)
        again = play(asked.part, seed, kept, postgres=postgres)
        print(f"{len(kept)} of its {len(struck)} faults are enough:")
        for name, what in again.struck.items():
            print(f"  {name:<14} {what}")
        if again.failure is not None:
            print(_line(again.failure))
        print(f"Step by step: {command(asked.part, seed, kept, asked.mutant, asked.postgres)} --trace")
    return 1


def _line(failure: BaseException) -> str:
    return f"{type(failure).__name__}: {str(failure)[:1000]}"


if __name__ == "__main__":
    raise SystemExit(main())
