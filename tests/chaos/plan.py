"""Which faults come when, all drawn from one seed before anything begins."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["kill", "pause", "restart", "drop", "slow", "cut", "full", "lock"]
Targets = Mapping[Kind, Sequence[str]]  # What each kind can hit.

GAP_S = (1.0, 4.0)  # From one fault to the next; those that last may meet.
LEASE_S = 10.0  # Of all leases in the run.
LASTS_S: dict[Kind, tuple[float, float]] = {
    "kill": (0.0, 0.0),
    "pause": (LEASE_S + 1.0, LEASE_S + 6.0),  # Past the lease: others take over what it held.
    "restart": (0.5, 3.0),  # How long it is away.
    "drop": (0.5, 4.0),
    "slow": (3.0, 8.0),
    "cut": (1.0, 4.0),
    "full": (3.0, 8.0),
    "lock": (3.0, LEASE_S + 6.0),
}


@dataclass(frozen=True, slots=True)
class Fault:
    at_s: float  # After the start.
    kind: Kind
    target: str
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"


def plan(seed: int, seconds: float, targets: Targets, calm_s: float = 2.0) -> list[Fault]:
    """The faults of a run, none in its first and last seconds. Every pair of kind and target has its turn before any
    comes again."""
    chance, turns = random.Random(seed), _turns(random.Random(f"turns {seed}"), targets)
    faults: list[Fault] = []
    at_s = calm_s
    while (at_s := at_s + chance.uniform(*GAP_S)) < seconds - calm_s:
        kind, target = next(turns)
        faults.append(Fault(round(at_s, 2), kind, target, round(chance.uniform(*LASTS_S[kind]), 2)))
    return faults


def _turns(chance: random.Random, targets: Targets) -> Iterator[tuple[Kind, str]]:
    pairs: list[tuple[Kind, str]] = [(kind, each) for kind, its_targets in targets.items() for each in its_targets]
    while True:
        chance.shuffle(pairs)
        # Kinds by turns, so that a short run meets most of them.
        yield from sorted(pairs, key=_rank_by_kind(pairs))


def _rank_by_kind(pairs: Sequence[tuple[Kind, str]]) -> Callable[[tuple[Kind, str]], int]:
    ranks: dict[tuple[Kind, str], int] = {}
    seen: dict[Kind, int] = {}
    for pair in pairs:
        ranks[pair] = seen[pair[0]] = seen.get(pair[0], -1) + 1
    return ranks.__getitem__
