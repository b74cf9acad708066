"""How long it takes from an event to its output, while events come at a steady pace that leaves room."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Family, Result, result
from bench.spark import parts, sessions, work
from bench.spark.ground import SLOTS, SMALL, Installation, announced

EVENTS = 120
EVERY_S = 0.4
WARM = 100
ROWS = 1_000


def measure(count: int = EVENTS, warm: int = WARM, every_s: float = EVERY_S) -> Iterator[Result]:
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory, Installation(SMALL) as qo:
        qo.small(work.written(Path(directory, "warm"), warm, ROWS))
        began = time.perf_counter()
        for number, path in enumerate(work.written(Path(directory, "steady"), count, ROWS)):
            qo.rest(max(0.0, began + number * every_s - time.perf_counter()))
            qo.emit("numbers", [announced(path)])
        qo.completed({"totals": warm + count})
        rows = parts.ended(qo, last=count)
    found = parts.latencies_ms(rows)
    for share in (50, 99):
        yield result(
            f"event_to_output_p{share}_ms",
            found[min(len(found) * share // 100, len(found) - 1)],
            "ms",
            events=count,
            events_per_s=1 / every_s,
            parts_ms=parts.parts_ms(rows),
            note="from the event's arrival at the dispatcher to the commit of its output; parts are medians",
            slots=SLOTS,
            **sessions.described(),
        )


FAMILIES = [Family(["event_to_output_p50_ms", "event_to_output_p99_ms"], measure)]
