"""What holds of every task in every history of commands, whoever sends them and whenever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qo.core import keys
from qo.core.lifecycle import (
    AddDependent,
    Archive,
    Break,
    Cancel,
    Claim,
    Command,
    Complete,
    Expire,
    Fail,
    FollowUp,
    Held,
    Lapse,
    Meet,
    Offer,
    Reason,
    Rejected,
    Release,
    Renew,
    Replay,
    Reschedule,
    Revive,
    Unarchive,
    decide,
)
from qo.core.task import ENDED, Flow, Status, Task

pytestmark = pytest.mark.fast

START = datetime(2026, 3, 1, 12, 0, 30, 250_000, tzinfo=UTC)
ID = "a3f1c0de-0000-4000-8000-000000000001"

# Pools so small that commands of a history meet: the same lease twice, a token seen before.
tokens = st.integers(0, 40).map(lambda n: f"token-{n}")
leases = st.sampled_from(["lease-a", "lease-a", "lease-a", "lease-b"])
spans_s = st.sampled_from([0.001, 1.0, 30.0, 90.0])
units = st.sampled_from([0.0, 0.5, 0.999])

claims = st.builds(
    Claim, token=tokens, lease_id=leases, worker_id=st.sampled_from(["w1", "w2"]), lease_s=st.none() | spans_s
)
helds: st.SearchStrategy[Held] = st.one_of(
    st.builds(Renew, token=tokens, lease_id=leases, lease_s=st.none() | spans_s, progress=st.none() | st.just(7)),
    st.builds(Complete, token=tokens, lease_id=leases, output=st.none() | st.just({"n": 1})),
    st.builds(
        Fail,
        token=tokens,
        lease_id=leases,
        error=st.just("boom"),
        unit=units,
        permanent=st.booleans(),
        delay_s=st.none() | spans_s,
    ),
    st.builds(Reschedule, token=tokens, lease_id=leases, delay_s=spans_s),
    st.builds(Release, token=tokens, lease_id=leases),
)
others: st.SearchStrategy[Command] = st.one_of(
    st.builds(Lapse, token=tokens, lease_id=leases, unit=units),
    st.builds(Cancel, token=tokens, by=st.none() | st.just("ann"), reason=st.none() | st.just("late")),
    st.builds(Expire, token=tokens),
    st.builds(Offer, token=tokens),
    st.builds(Replay, token=tokens),
    st.builds(Archive, token=tokens),
    st.builds(Unarchive, token=tokens),
    st.builds(FollowUp, token=tokens, attempt=st.integers(0, 3)),
    st.builds(AddDependent, token=tokens, task_id=st.sampled_from(["j", "k"])),
    st.builds(Meet, token=tokens, conditions=st.sampled_from([("d",), ("e",), ("d", "e")])),
    st.builds(Break, token=tokens, dependency=st.sampled_from(["d", "e"]), status=st.just(Status.FAILED)),
    st.builds(Revive, token=tokens),
)
commands: st.SearchStrategy[Command] = st.one_of(claims, claims, helds, helds, others)

# Mostly forwards; now and then the store's clock is corrected backwards.
steps_s = st.sampled_from([0.0, 0.5, 2.0, 45.0, 120.0, -3.0])
histories = st.lists(st.tuples(steps_s, commands), min_size=1, max_size=30)

tasks = st.builds(
    Task,
    id=st.just(ID),
    task_type=st.just("work"),
    shard=st.just("a"),
    token=st.just("submitted"),
    available_at=st.sampled_from([START, START + timedelta(seconds=20)]),
    expires_at=st.none() | st.just(START + timedelta(seconds=100)),
    priority=st.sampled_from([0, 9]),
    timeout_seconds=st.just(60.0),
    max_retries=st.integers(0, 2),
    max_reschedules=st.none() | st.integers(0, 1),
    on_failure=st.none() | st.just("alert"),
    inbox=st.none() | st.just("w1"),
    created_at=st.just(START),
    updated_at=st.just(START),
    flow=st.none() | st.builds(Flow, depends_on=st.just(("d", "e")), waits_for=st.sampled_from([(), ("d", "e")])),
)


class Move(NamedTuple):
    before: Task
    command: Command
    now: datetime
    answer: Task | Rejected

    @property
    def after(self) -> Task:
        return self.before if isinstance(self.answer, Rejected) else self.answer


def walk(task: Task, history: list[tuple[float, Command]]) -> Iterator[Move]:
    now = START
    for step_s, command in history:
        now += timedelta(seconds=step_s)
        move = Move(task, command, now, decide(task, command, now=now))
        yield move
        task = move.after


def holds(check: Callable[..., None]) -> Callable[..., None]:
    """Check a law along many histories. No deadline: a slow machine is not a broken law."""
    return settings(deadline=None)(given(task=tasks, history=histories)(check))


@holds
def test_a_replayed_command_changes_nothing(task: Task, history: list[tuple[float, Command]]) -> None:
    for move in walk(task, history):
        if not isinstance(move.answer, Rejected):
            again = decide(move.answer, move.command, now=move.now + timedelta(seconds=500))
            assert again is move.answer


def settled(task: Task, command: Held) -> bool:
    """Its holder has ended this attempt already and asks again, because it did not hear the answer."""
    return command.lease_id == task.settled_lease_id and not isinstance(command, Renew)


@holds
def test_a_stale_lease_never_wins(task: Task, history: list[tuple[float, Command]]) -> None:
    for before, command, _, answer in walk(task, history):
        if isinstance(command, Held) and command.lease_id != before.lease_id and command.token != before.token:
            if settled(before, command):
                assert answer is before
            else:
                assert isinstance(answer, Rejected)
                assert answer.reason is Reason.LEASE_LOST


@given(task=tasks, history=histories, late=helds)
@settings(deadline=None)
def test_a_worker_that_lost_its_lease_changes_nothing(
    task: Task, history: list[tuple[float, Command]], late: Held
) -> None:
    for move in walk(task, history):
        if move.after.lease_id != late.lease_id:
            answer = decide(move.after, late, now=move.now)
            assert isinstance(answer, Rejected) or answer is move.after


@holds
def test_only_the_holder_settles_and_what_it_settled_stays_known(
    task: Task, history: list[tuple[float, Command]]
) -> None:
    for before, command, _, answer in walk(task, history):
        if isinstance(answer, Rejected) or answer is before:
            continue
        if isinstance(command, Held) and answer.status is not Status.RUNNING:
            assert answer.settled_lease_id == before.lease_id
        else:
            assert answer.settled_lease_id == before.settled_lease_id


@holds
def test_only_a_claim_counts_an_attempt(task: Task, history: list[tuple[float, Command]]) -> None:
    for move in walk(task, history):
        claimed = isinstance(move.command, Claim) and move.after is not move.before
        assert move.after.attempt == move.before.attempt + (1 if claimed else 0)


@holds
def test_what_has_ended_stays_ended_unless_asked_back(task: Task, history: list[tuple[float, Command]]) -> None:
    for before, command, _, answer in walk(task, history):
        if before.status in ENDED and not isinstance(answer, Rejected) and answer is not before:
            connects = isinstance(command, AddDependent | Meet) and answer.status is before.status
            assert connects or isinstance(command, Replay | Archive | Unarchive | FollowUp | Revive)
            assert answer.ended or isinstance(command, Replay | Revive)


@holds
def test_archiving_and_back_restores_the_ending(task: Task, history: list[tuple[float, Command]]) -> None:
    ending: Status | None = None
    for move in walk(task, history):
        if move.after.status is not Status.ARCHIVED:
            if move.before.status is Status.ARCHIVED:
                assert move.after.status is ending
            ending = move.after.status
        assert (move.after.archived_from is not None) == (move.after.status is Status.ARCHIVED)


@holds
def test_retries_and_reschedules_stay_within_their_limits(
    task: Task, history: list[tuple[float, Command]]
) -> None:
    for move in walk(task, history):
        assert 0 <= move.after.retry_count <= task.max_retries
        assert task.max_reschedules is None or move.after.reschedule_count <= task.max_reschedules


@holds
def test_a_lease_is_whole_or_absent(task: Task, history: list[tuple[float, Command]]) -> None:
    for move in walk(task, history):
        after = move.after
        if after.status is Status.RUNNING:
            assert after.lease_id is not None
            assert after.worker_id is not None
            assert after.lease_expires_at is not None
        else:
            assert after.lease_id is None
            assert after.lease_expires_at is None
        if after.status in (Status.PENDING, Status.FAILED, Status.EXPIRED):
            assert after.worker_id is None


@holds
def test_an_end_has_a_time_and_nothing_else_has(task: Task, history: list[tuple[float, Command]]) -> None:
    for move in walk(task, history):
        assert (move.after.completed_at is not None) == move.after.ended


@holds
def test_history_never_runs_backwards(task: Task, history: list[tuple[float, Command]]) -> None:
    for move in walk(task, history):
        assert move.after.updated_at >= move.before.updated_at
        assert move.after.completed_at is None or move.after.completed_at >= move.after.created_at


@holds
def test_a_write_carries_its_writers_token(task: Task, history: list[tuple[float, Command]]) -> None:
    for move in walk(task, history):
        if move.after is not move.before:
            assert move.after.token == move.command.token


@holds
def test_after_a_cancel_request_no_ending_contradicts_it(task: Task, history: list[tuple[float, Command]]) -> None:
    for move in walk(task, history):
        if move.before.cancel_requested and move.before.status is Status.RUNNING:
            assert move.after.status in (Status.RUNNING, Status.CANCELLED)
        assert not (move.after.cancel_requested and move.after.status is Status.PENDING)


@holds
def test_a_lease_is_not_taken_away_before_it_runs_out(task: Task, history: list[tuple[float, Command]]) -> None:
    for before, command, now, answer in walk(task, history):
        early = before.lease_expires_at is not None and now < before.lease_expires_at
        if isinstance(command, Lapse) and early and command.token != before.token:
            assert isinstance(answer, Rejected)
            assert answer.reason is Reason.LEASE_VALID


@holds
def test_a_task_is_not_claimed_before_it_is_due_nor_after_it_expired(
    task: Task, history: list[tuple[float, Command]]
) -> None:
    for before, command, now, answer in walk(task, history):
        if isinstance(command, Claim) and not isinstance(answer, Rejected) and answer is not before:
            assert before.status is Status.PENDING
            assert before.available_at <= max(now, before.updated_at)
            assert before.expires_at is None or now < before.expires_at


@holds
def test_a_rejected_command_says_why(task: Task, history: list[tuple[float, Command]]) -> None:
    for move in walk(task, history):
        if isinstance(move.answer, Rejected):
            assert move.answer.reason in Reason
            assert ID in move.answer.detail


@holds
def test_identity_and_request_are_never_rewritten(task: Task, history: list[tuple[float, Command]]) -> None:
    for move in walk(task, history):
        for field in ("id", "task_type", "shard", "format", "created_at", "input", "max_retries", "priority"):
            assert getattr(move.after, field) == getattr(task, field)


@holds
def test_the_index_key_agrees_with_the_state(task: Task, history: list[tuple[float, Command]]) -> None:
    for move in walk(task, history):
        after, key = move.after, keys.index_key(move.after)
        if after.waiting:
            assert key == keys.index(keys.WAITING, after.shard, keys.minute_of(after.available_at), ID)
        elif after.status is Status.PENDING:
            routed = None if after.inbox is None else keys.inbox_key("w1", keys.ready_minute(after), ID)
            assert key == (routed or keys.ready_key(after))
        elif after.status is Status.RUNNING:
            assert after.lease_expires_at is not None
            assert key == keys.index(keys.LEASES, after.shard, keys.minute_of(after.lease_expires_at), ID)
        elif after.follow_up_due:
            assert after.completed_at is not None
            assert key == keys.index(keys.LEASES, after.shard, keys.minute_of(after.completed_at), ID)
        else:
            assert key is None


@holds
def test_only_a_task_that_never_moved_is_in_an_inbox(task: Task, history: list[tuple[float, Command]]) -> None:
    for move in walk(task, history):
        if move.after.inbox is not None:
            assert move.after.inbox == move.before.inbox, "nothing but the submission puts it there"
            assert move.after.status is Status.PENDING
            assert move.after.attempt == 0


@holds
def test_what_follows_a_failure_is_due_from_then_until_it_is_recorded_or_the_task_is_replayed(
    task: Task, history: list[tuple[float, Command]]
) -> None:
    for move in walk(task, history):
        before, after = move.before, move.after
        failed = Status.FAILED in (after.status, after.archived_from)
        if after.follow_up_due:
            assert failed
            assert after.on_failure is not None
        if after.status is Status.FAILED and before.status is Status.RUNNING:
            assert after.follow_up_due == (after.on_failure is not None)
        if before.follow_up_due and not after.follow_up_due:
            assert isinstance(move.command, FollowUp | Replay)
        assert after.followed_attempt <= after.attempt


@holds
def test_a_waiting_task_is_never_listed_before_it_may_be_claimed(
    task: Task, history: list[tuple[float, Command]]
) -> None:
    for move in walk(task, history):
        if move.after.status is Status.PENDING and move.after.available_at > move.after.updated_at:
            parsed = keys.parse_index(keys.ready_key(move.after))
            assert parsed is not None
            assert parsed.due_minute == keys.minute_of(move.after.available_at)


@holds
def test_a_task_that_waits_for_others_is_not_claimed(task: Task, history: list[tuple[float, Command]]) -> None:
    for before, command, _, answer in walk(task, history):
        if isinstance(command, Claim) and before.waiting and command.token != before.token:
            assert isinstance(answer, Rejected)
            assert answer.reason is Reason.WAITING


@holds
def test_only_what_is_met_or_replayed_is_waited_for_no_more(
    task: Task, history: list[tuple[float, Command]]
) -> None:
    for move in walk(task, history):
        before, after = move.before.flow, move.after.flow
        if before is None or after is None or before.waits_for == after.waits_for:
            continue
        dropped = set(before.waits_for) - set(after.waits_for)
        assert set(after.waits_for) < set(before.waits_for), "a condition is never added"
        if isinstance(move.command, Meet):
            assert dropped <= set(move.command.conditions)
        else:
            assert isinstance(move.command, Replay)


@holds
def test_dependents_are_never_forgotten(task: Task, history: list[tuple[float, Command]]) -> None:
    for move in walk(task, history):
        before, after = move.before.flow or Flow(), move.after.flow or Flow()
        assert after.dependents[: len(before.dependents)] == before.dependents
        assert after.depends_on == before.depends_on
