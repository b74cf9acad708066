"""Whether a claim costs more when more tasks wait. Flat is right: a worker looks at the head of the line only."""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness import Family, Result, Target, median, result
from bench.process import run

STORES = ("local", "memory")
SAMPLES = 20
LOADS = {  # Tasks ready, and tasks scheduled for tomorrow.
    "1k": (1_000, 0),
    "10k": (10_000, 0),
    "100k": (100_000, 0),
    "1k_and_100k_tomorrow": (1_000, 100_000),
}


def measure() -> Iterator[Result]:
    for store in STORES:
        answers = run("bench.peers.claims", {"do": "claim", "store": store, "loads": LOADS, "samples": SAMPLES})
        p50_ms = {load: 1000 * median(answer["seconds"]) for load, answer in answers.items()}
        requests = {load: answer["requests"] for load, answer in answers.items()}
        growth = {
            (load, what): cost[load] / cost["1k"]
            for what, cost in (("latency", p50_ms), ("requests", requests))
            for load in ("100k", "1k_and_100k_tomorrow")
        }
        worst = max(growth, key=lambda each: growth[each])
        yield result(
            "claim_cost_growth_100k" if store == "local" else f"claim_cost_growth_100k_{store}",
            growth[worst],
            "x",
            target=Target("value", "<=", 1.2) if store == "local" else None,  # Memory is for tests.
            worst_of=f"p50 {worst[1]} of a claim, {worst[0]} against 1k",
            store=store,
            samples=SAMPLES,
        )
        for load in LOADS:
            ready, scheduled = LOADS[load]
            settings = {"store": store, "ready": ready, "scheduled_for_tomorrow": scheduled}
            yield result(f"claim_p50_ms_{store}_{load}", p50_ms[load], "ms", baseline=p50_ms["1k"], **settings)
            yield result(
                f"claim_requests_{store}_{load}", requests[load], "requests", baseline=requests["1k"], **settings
            )


FAMILIES = [Family(["claim_cost_growth_100k"], measure)]
