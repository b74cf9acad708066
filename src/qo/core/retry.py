"""When a failed attempt may be tried again."""

from __future__ import annotations

from qo.core.task import RetryPolicy
from qo.errors import UsageError


def delay_s(policy: RetryPolicy, retries: int, unit: float) -> float:
    """Seconds to rest before retry number ``retries + 1``.

    ``unit`` in [0, 1) is the caller's draw: 0.5 gives the delay without jitter. The result never exceeds
    the policy's longest interval by more than its jitter, however many retries there were.
    """
    longest = policy.max_interval_ms
    try:
        grown = min(policy.initial_interval_ms * policy.multiplier**retries, longest)
    except OverflowError:
        grown = longest
    return grown / 1000 * (1 + policy.jitter_percent * (2 * unit - 1))


def validate(policy: RetryPolicy) -> RetryPolicy:
    """The policy itself, or a UsageError that names the field to fix."""
    if policy.initial_interval_ms < 0 or policy.max_interval_ms < 0:
        raise UsageError("retry intervals must not be negative")
    if policy.multiplier < 1:
        raise UsageError(f"retry multiplier must be at least 1, not {policy.multiplier}")
    if not 0 <= policy.jitter_percent <= 1:
        raise UsageError(f"retry jitter_percent must be between 0 and 1, not {policy.jitter_percent}")
    return policy
