"""The reasons of scaling decisions as text for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qo.core.durations import format_duration
from qo.core.pipeline.scaling import Code, Policy, Reason
from qo.core.words import plural


def describe(reason: Reason, policy: Policy) -> str:
    """Return why a decision was taken, with the numbers that it was taken from."""
    return _TEXTS[reason.code](reason, policy)


def _work(reason: Reason) -> str:
    load = reason.load
    return f"{plural(load.waiting, 'task')} waiting, {load.running:,} running"


def _need(reason: Reason, policy: Policy) -> str:
    return f"{_work(reason)}: {plural(reason.needed, 'worker')} of {plural(policy.slots, 'slot')} needed"


def _describe_backlog(reason: Reason, policy: Policy) -> str:
    if reason.load.task_s is None:
        return f"{_need(reason, policy)}, for it is not known how long tasks run"
    run = f"tasks run for {reason.load.task_s:.3g} s and may wait for {policy.target_wait_s:g} s"
    return f"{_need(reason, policy)}, since {run}"


def _describe_late(reason: Reason, policy: Policy) -> str:
    waited = format_duration(reason.load.oldest_s)
    return f"the oldest task has waited for {waited}, longer than {policy.target_wait_s:g} s, and all workers are busy"


def _describe_enough(reason: Reason, policy: Policy) -> str:
    return f"{_work(reason)}: {plural(reason.live, 'worker')} enough"


def _describe_held(reason: Reason, policy: Policy) -> str:
    return f"nothing is waiting or running; {plural(reason.load.held, 'job')} held back (see qo queue held)"


def _describe_places(reason: Reason, policy: Policy) -> str:
    ends = f"{plural(reason.draining, 'worker')} still draining, and at most {policy.max} may be there"
    return f"{plural(reason.needed, 'worker')} needed, but {ends}"


def _describe_backoff(reason: Reason, policy: Policy) -> str:
    return f"{plural(reason.deaths, 'worker')} died in a row: the next is started in {reason.rest_s:.3g} s"


_TEXTS: Mapping[Code, Callable[[Reason, Policy], str]] = {
    Code.BELOW_MIN: lambda reason, policy: f"there are to be at least {plural(policy.min, 'worker')}",
    Code.WORK_AT_ZERO: lambda reason, policy: f"{_need(reason, policy)}, and there is none",
    Code.BACKLOG: _describe_backlog,
    Code.LATE: _describe_late,
    Code.ABOVE_MAX: lambda reason, policy: f"there are to be at most {plural(policy.max, 'worker')}",
    Code.SURPLUS: lambda reason, policy: (
        f"{_need(reason, policy)}, and no more for {format_duration(policy.idle_s)}"
    ),
    Code.IDLE: lambda reason, policy: f"nothing has been waiting or running for {format_duration(policy.idle_s)}",
    Code.ENOUGH: _describe_enough,
    Code.HELD: _describe_held,
    Code.AT_MAX: lambda reason, policy: (
        f"{_work(reason)}: all {plural(policy.max, 'worker')} that may be are there"
    ),
    Code.COOLING: lambda reason, policy: (
        f"{_need(reason, policy)}; the others are drained if that is so for another {format_duration(reason.rest_s)}"
    ),
    Code.PLACES_TAKEN: _describe_places,
    Code.BACKOFF: _describe_backoff,
}
