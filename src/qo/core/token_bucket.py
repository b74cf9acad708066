"""A token bucket: a rate with a burst."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """Holds up to ``burst`` tokens and gains ``rate`` of them a second. Times are seconds of any one clock."""

    rate: float
    burst: float
    tokens: float
    updated_at: float

    @classmethod
    def full(cls, rate: float, burst: float, *, now: float) -> TokenBucket:
        return cls(rate, burst, burst, now)

    def take(self, *, now: float) -> tuple[TokenBucket, float]:
        """Take a token. Return the bucket afterwards, and 0 if there was one; else nothing is taken, and the second
        value is for how many seconds to wait."""
        bucket = self._refill(now)
        if bucket.tokens < 1.0:
            return bucket, (1.0 - bucket.tokens) / self.rate
        return replace(bucket, tokens=bucket.tokens - 1.0), 0.0

    def owe(self, count: int, *, now: float) -> TokenBucket:
        """Take tokens whether they are there or not; until they are paid back, none can be taken."""
        bucket = self._refill(now)
        return replace(bucket, tokens=bucket.tokens - count)

    def _refill(self, now: float) -> TokenBucket:
        gained = max(0.0, now - self.updated_at) * self.rate
        return replace(self, tokens=min(self.burst, self.tokens + gained), updated_at=max(now, self.updated_at))

    def is_full(self, *, now: float) -> bool:
        return self.tokens + max(0.0, now - self.updated_at) * self.rate >= self.burst
