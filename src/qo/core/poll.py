"""The rest between polls: short while there is work, longer when there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Pace:
    """Doubles from ``min_s`` to ``max_s`` while nothing is found, and starts over when something is."""

    min_s: float = 0.1
    max_s: float = 5.0
    current_s: float = 0.0

    def after(self, *, found_work: bool) -> Pace:
        if found_work:
            return replace(self, current_s=0.0)
        return replace(self, current_s=min(self.max_s, max(self.min_s, self.current_s * 2)))

    def rest_s(self, unit: float) -> float:
        """The rest with ±10 % jitter, so that workers that started together drift apart."""
        return self.current_s * (0.9 + 0.2 * unit)
