"""Whether a claim costs more when more tasks wait. Flat is right: a worker looks at the head of the line only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bench.harness import Family, Result, Target, median, result
from bench.process import run

STORES = ("local", "memory")
FLAT = Target("value", "<=", 1.2)
SAMPLES = 15


class Load(NamedTuple):
    name: str
    ready: int
    scheduled: int  # For tomorrow.


LOADS = [
    Load("1k", 1_000, 0),
    Load("10k", 10_000, 0),
    Load("100k", 100_000, 0),
    Load("1k_and_100k_tomorrow", 1_000, 100_000),
]


class Cost(NamedTuple):
    """Of one claim, with its share of looking for candidates."""

    p50_ms: float
    requests: float


def _cost(store: str, load: Load) -> Cost:
    job = {
        "do": "claim",
        "store": store,
        "ready": load.ready,
        "scheduled": load.scheduled,
        "samples": SAMPLES,
    }
    answer = run("bench.peers.claims", job)
    return Cost(1000 * median(answer["seconds"]), answer["requests"])


def measure() -> Iterator[Result]:
    for store in STORES:
        costs = {load.name: _cost(store, load) for load in LOADS}
        few = costs["1k"]
        worst = max(costs["100k"], costs["1k_and_100k_tomorrow"])
        name = "claim_cost_growth_100k" if store == STORES[0] else f"claim_cost_growth_100k_{store}"
        yield result(
            name,
            max(worst.p50_ms / few.p50_ms, *(cost.requests / few.requests for cost in costs.values())),
            "x",
            target=FLAT,
            of="the worst of p50 latency and requests of a claim with 100,000 tasks ready, or 1,000 and as many tomorrow",
            against="1,000 ready",
            store=store,
        )
        for load, cost in costs.items():
            yield result(f"claim_p50_ms_{store}_{load}", cost.p50_ms, "ms", baseline=few.p50_ms, store=store)
            yield result(
                f"claim_requests_{store}_{load}", cost.requests, "requests", baseline=few.requests, store=store
            )


FAMILIES = [Family(["claim_cost_growth_100k"], measure)]
