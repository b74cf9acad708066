"""The operators of ``pipeline.yaml``: plain functions of a run."""

from __future__ import annotations

import json
from collections import defaultdict

import qo

GOODS = {"apple": 0.5, "pear": 0.75, "plum": 0.25}


def clean(run: qo.Run) -> dict[str, int]:
    """The day's orders, split into those that can be counted and those that cannot."""
    kept, rejected = [], []
    for order in received(run):
        fine = order["currency"] in run.config["currencies"] and order["quantity"] > 0
        (kept if fine else rejected).append(order)
    run.output(0).write("orders.jsonl", lines(kept), rows=len(kept))
    run.output(1).write("rejected.jsonl", lines(rejected), rows=len(rejected))
    return {"kept": len(kept), "rejected": len(rejected)}


def totals(run: qo.Run) -> None:
    """One row per article and currency."""
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for order in map(json.loads, run.input("sales").lines()):
        sums[order["article"], order["currency"]] += order["quantity"] * GOODS[order["article"]]
    rows = [
        {"day": run.partition_key, "article": article, "currency": currency, "total": round(total, 2)}
        for (article, currency), total in sorted(sums.items())
    ]
    run.output().write("totals.jsonl", lines(rows), rows=len(rows))


def received(run: qo.Run) -> list[dict]:
    """A day of orders, made up from its name: the same day always has the same orders."""
    seed = sum(map(ord, run.partition_key or ""))
    articles, currencies = sorted(GOODS), ["EUR", "USD", "EUR", "GBP"]
    return [
        {
            "id": f"{run.partition_key}/{number}",
            "article": articles[(seed + number) % len(articles)],
            "currency": currencies[(seed * number) % len(currencies)],
            "quantity": (seed + 7 * number) % 5,
        }
        for number in range(40)
    ]


def lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
