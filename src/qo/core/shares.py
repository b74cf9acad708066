"""How queues that share a worker's slots take turns.

Each queue has a pass, which grows by 1/weight with every task that it starts; a free slot goes to the queue with the
lowest pass among those that want one. So while several queues have work, they start tasks in proportion to their
weights, none of them waits for ever, and no slot stays idle for the sake of a queue that has nothing to do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


def grant_slots(
    passes: Mapping[str, float], weights: Mapping[str, int], wanting: Collection[str], free: int
) -> dict[str, int]:
    """Return how many of the free slots each queue that wants some may take, one slot after the other."""
    grants = dict.fromkeys(sorted(wanting), 0)
    reached = dict(passes)
    for _ in range(free if grants else 0):
        name = min(grants, key=lambda each: reached[each])
        grants[name] += 1
        reached[name] += 1 / weights[name]
    return grants


def cap_of_queue(slots: int, queues: int, kept_free: int) -> int:
    """Return how many of the slots one of several queues may use, if it leaves ``kept_free`` to each of the others.

    Long tasks of one queue then never use up the slots that short tasks of another would need. At least one slot
    remains for every queue, even if there are fewer slots than that takes.
    """
    return max(1, slots - kept_free * (queues - 1))


def pass_on_return(passes: Mapping[str, float], wanting: Collection[str], name: str) -> float:
    """Return the pass of a queue that wants slots again: it may not make up for the time in which it wanted none."""
    return max(passes[name], min((passes[each] for each in wanting if each != name), default=passes[name]))
