"""Fewer faults that still do it: delta debugging, after Zeller."""

from __future__ import annotations

from collections.abc import Callable, Sequence

TRIES_MAX = 300


def shrink(faults: Sequence[str], fails: Callable[[Sequence[str]], bool], tries_max: int = TRIES_MAX) -> list[str]:
    """Some of the faults, in order, with which it still fails. With none of them left out it must fail.

    If there were tries enough, it would not fail without any one of them.
    """
    kept, parts, tries = list(faults), 2, 0
    if fails([]):
        return []
    while len(kept) > 1 and tries < tries_max:
        size = -(-len(kept) // parts)
        for start in range(0, len(kept), size):
            rest = kept[:start] + kept[start + size :]
            tries += 1
            if fails(rest):
                kept, parts = rest, max(parts - 1, 2)
                break
            if tries >= tries_max:
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(kept))
    return kept
