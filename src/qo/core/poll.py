"""The rest between polls: short while there is work, longer when there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Pace:
    """Doubles from ``min_s`` to ``max_s`` while nothing is found, and starts over when something is."""

    min_s: float = 0.1
    max_s: float = 5.0
    current_s: float = 0.0

    def after(self, *, found_work: bool, max_s: float | None = None) -> Pace:
        """``max_s``: the longest rest for now, if not that of the pace."""
        if found_work:
            return replace(self, current_s=0.0)
        longest_s = self.max_s if max_s is None else max_s
        return replace(self, current_s=min(longest_s, max(self.min_s, self.current_s * 2)))

    def rest_s(self, unit: float) -> float:
        """The rest with ±10 % jitter, so that workers that started together drift apart."""
        return self.current_s * (0.9 + 0.2 * unit)
