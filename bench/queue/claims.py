"""How long a claim takes on the real S3 server while four workers want the same tasks."""

from __future__ import annotations

from collections.abc import Iterator

from bench.harness import Family, Result, result
from bench.lab import seaweed
from bench.process import run_all
from bench.queue.sides import Qo

WORKERS = 4
SLOTS = 4  # Of each: with more, the server's two cores are what is measured.
TASKS = 1200


def measure() -> Iterator[Result]:
    with seaweed() as server:
        side = Qo.fresh(server)
        side.enqueue(TASKS)
        job = {**side.job(), "do": "time_claims", "worker": {"concurrency": SLOTS}}
        jobs = [{**job, "worker_id": f"bench-{number}"} for number in range(WORKERS)]
        answers = run_all("bench.peers.qo", jobs, side.environment())
    taken = sorted(ms for answer in answers for ms in answer["claims_ms"])
    if len(taken) != TASKS:
        raise RuntimeError(f"{len(taken)} of {TASKS} tasks were claimed")
    settings = {
        "tasks": TASKS,
        "workers": WORKERS,
        "slots_of_each": SLOTS,
        "claims_missed": sum(answer["missed"] for answer in answers),
        "note": "from the call of claim to its answer: one GET and one conditional PUT; of claims that succeeded",
    }
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        yield result(f"claim_{name}_ms_s3", taken[int(share * (len(taken) - 1))], "ms", **settings)


FAMILIES = [Family(["claim_p50_ms_s3", "claim_p99_ms_s3"], measure)]
