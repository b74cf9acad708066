"""The delay before a failed attempt is retried."""

from __future__ import annotations

from qo.core.task import RetryPolicy
from qo.errors import UsageError

INTERVAL_MAX_MS = 365 * 24 * 3_600_000  # A year. Far longer ones would overflow the calendar.


def delay_s(policy: RetryPolicy, retries: int, unit: float) -> float:
    """Return the seconds to rest before retry number ``retries + 1``.

    ``unit`` in [0, 1) is the caller's random number: 0.5 gives the delay without jitter. The result never exceeds the
    policy's longest interval by more than its jitter.
    """
    longest = policy.max_interval_ms
    try:
        grown = min(policy.initial_interval_ms * policy.multiplier**retries, longest)
    except OverflowError:
        grown = longest
    return grown / 1000 * (1 + policy.jitter_percent * (2 * unit - 1))


def validate(policy: RetryPolicy) -> RetryPolicy:
    """Return the policy itself. Raises UsageError that names the field to fix."""
    shorter, longer = sorted((policy.initial_interval_ms, policy.max_interval_ms))
    if shorter < 0 or longer > INTERVAL_MAX_MS:
        raise UsageError(f"retry intervals must be between 0 and {INTERVAL_MAX_MS} ms")
    if not 1 <= policy.multiplier < float("inf"):  # False for NaN, too.
        raise UsageError(f"retry multiplier must be a number of at least 1, not {policy.multiplier}")
    if not 0 <= policy.jitter_percent <= 1:
        raise UsageError(f"retry jitter_percent must be between 0 and 1, not {policy.jitter_percent}")
    return policy
