"""The protocols on which everything rests, over every interleaving of a few clients and a few faults.

``make test`` explores two clients with any one fault; ``make prove`` three of them, or two faults.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from functools import partial

import msgspec
import pytest

from model import claims, inbox_leases, lines, purges, shard_leases
from model.claims import Claims
from model.explorer import Broken, explore
from model.inbox_leases import Leases as InboxLeases
from model.inbox_leases import own_inbox
from model.lines import Lines
from model.purges import Purges
from model.shard_leases import Leases
from qo.core import lifecycle
from qo.core.lifecycle import Command, Held, Offer, Rejected
from qo.core.task import Status, Task
from qo.core.waits import Verdict, assess

CLAIMS = claims.Config(faults=1)
LEASES = shard_leases.Config(faults=1)
INBOXES = inbox_leases.Config(faults=1)
FEW, MANY = pytest.mark.fast, [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(CLAIMS, marks=FEW),
        pytest.param(replace(CLAIMS, routed=True, retries_max=0), marks=FEW),
        pytest.param(replace(CLAIMS, faults=2), marks=MANY),
        pytest.param(replace(CLAIMS, skews=(0, 1, 0)), marks=MANY),
    ],
)
def test_one_handler_at_a_time_one_result_and_every_task_can_end(config: claims.Config) -> None:
    print(Claims(config).explore())


@pytest.mark.fast
def test_one_owner_of_an_inbox_and_there_can_always_be_one() -> None:
    print(InboxLeases(INBOXES).explore())


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(LEASES, marks=FEW),
        pytest.param(replace(LEASES, faults=2), marks=MANY),
    ],
)
def test_one_owner_of_a_shard_and_there_can_always_be_one(config: shard_leases.Config) -> None:
    print(Leases(config).explore())


@pytest.mark.fast
def test_a_purge_hits_no_task_that_lives_and_always_comes_to_an_end() -> None:
    print(Purges(purges.Config(deaths=3)).explore())


LINES = lines.Config()


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(replace(LINES, replays=0), marks=FEW),
        pytest.param(LINES, marks=MANY),
        pytest.param(replace(LINES, deaths=2, cancels=2, replays=2), marks=MANY),
        pytest.param(replace(LINES, tasks=3, replays=0), marks=MANY),
    ],
)
def test_a_group_runs_in_order_one_at_a_time_and_every_task_can_end(config: lines.Config) -> None:
    print(Lines(config).explore())


def _ended_is_over(waiting: Task, condition: str, target: Task | None) -> Verdict:
    """As if a task that was cancelled in line had had its turn."""
    in_line = "#" in condition and target is not None and target.ended
    return Verdict.MET if in_line else assess(waiting, condition, target)


LINE_MUTANTS = {
    "the last is replaced before it knows its place": replace(LINES, replays=0, places_last=False),
    "the task is read before the end of the line": replace(LINES, tasks=3, cancels=0, replays=0, end_first=False),
    "who is cancelled in line lets others pass": replace(
        LINES, tasks=3, deaths=0, replays=0, assess=_ended_is_over
    ),
}


@pytest.mark.fast
@pytest.mark.parametrize("name", LINE_MUTANTS)
def test_a_line_without_one_of_its_rules_is_found_broken(name: str) -> None:
    with pytest.raises(Broken) as found:
        Lines(LINE_MUTANTS[name]).explore()
    print(f"{name}: {found.value}")


PURGE_MUTANTS = {
    "the latest version is not removed last": purges.Config(latest_last=False),
    "data goes without a second look at its task": purges.Config(looks_again=False),
    "young data goes, too": purges.Config(grace=False),
}


@pytest.mark.fast
@pytest.mark.parametrize("name", PURGE_MUTANTS)
def test_a_purge_without_one_of_its_precautions_is_found_broken(name: str) -> None:
    with pytest.raises(Broken):
        Purges(PURGE_MUTANTS[name]).explore()


def _no_fence(task: Task, command: Command, now: datetime) -> Task | Rejected:
    if isinstance(command, Held) and task.lease_id is not None:
        command = msgspec.structs.replace(command, lease_id=task.lease_id)
    return lifecycle.decide(task, command, now=now)


def _offer_what_runs(task: Task, command: Command, now: datetime) -> Task | Rejected:
    if isinstance(command, Offer) and task.status is Status.RUNNING:
        return lifecycle._end_lease(task, command, now, Status.PENDING)
    return lifecycle.decide(task, command, now=now)


CLAIM_MUTANTS = {
    "no fence": replace(CLAIMS, decide=_no_fence),
    "an offer of a task that runs": replace(CLAIMS, decide=_offer_what_runs, routed=True),
    "no conditional write": replace(CLAIMS, conditional=False),
    "clocks further apart than the margin": replace(CLAIMS, monitor_skew=2),
    "a handler that is not stopped in time": replace(CLAIMS, stops_in_time=False),
}


@pytest.mark.fast
@pytest.mark.parametrize("name", CLAIM_MUTANTS)
def test_a_claim_protocol_without_one_of_its_parts_is_found_broken(name: str) -> None:
    with pytest.raises(Broken) as found:
        Claims(CLAIM_MUTANTS[name]).explore()
    print(f"{name}: {found.value}")


LEASE_MUTANTS = {
    "a grant that is in effect at once": replace(LEASES, wait=0),
    "a lease that counts from its answer": replace(LEASES, counts_from_request=False),
    "grants without numbers": replace(LEASES, numbers_grants=False),
}


INBOX_MUTANTS = {
    "an inbox that is taken from its live owner": replace(INBOXES, decide=partial(own_inbox, abandoned=True)),
    "no conditional write": replace(INBOXES, conditional=False),
    "a lease that counts from its answer": replace(INBOXES, counts_from_request=False),
    "clocks further apart than the margin": replace(INBOXES, skews=(0, 2)),
}


@pytest.mark.fast
@pytest.mark.parametrize("name", INBOX_MUTANTS)
def test_a_lease_on_an_inbox_without_one_of_its_parts_is_found_broken(name: str) -> None:
    with pytest.raises(Broken) as found:
        InboxLeases(INBOX_MUTANTS[name]).explore()
    print(f"{name}: {found.value}")


@pytest.mark.fast
@pytest.mark.parametrize("name", LEASE_MUTANTS)
def test_a_lease_protocol_without_one_of_its_parts_is_found_broken(name: str) -> None:
    with pytest.raises(Broken) as found:
        Leases(LEASE_MUTANTS[name]).explore()
    print(f"{name}: {found.value}")


@pytest.mark.fast
def test_the_explorer_finds_what_is_wrong_and_what_leads_nowhere() -> None:
    def count(n: int) -> list[tuple[str, int]]:
        return [("one more", n + 1)] if n < 5 else []

    assert explore(0, count, lambda n: None, lambda n: n == 5).states == 6
    with pytest.raises(Broken, match="three"):
        explore(0, count, lambda n: "three" if n == 3 else None, lambda n: n == 5)
    with pytest.raises(Broken, match="never ends well"):
        explore(0, count, lambda n: None, lambda n: n == 4)
