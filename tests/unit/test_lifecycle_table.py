"""Every move of a task, as a table: what each command makes of each state.

Read a row as: a task in this state, given the command of the column, becomes the state in the cell.
``=`` means that the very same task comes back (nothing is left to do), ``-`` that the command is rejected.
``clock lags`` was written as due by somebody whose view of the store's clock is ahead of ours.
The commands present the lease ``mine``; ``given back`` and ``by me`` were settled under it before.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from qo.core import lifecycle
from qo.core.lifecycle import (
    LEASE_S,
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
    TakeTurn,
    Unarchive,
    decide,
)
from qo.core.task import Flow, Status, Task

pytestmark = pytest.mark.fast

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NOW = START + timedelta(minutes=10)
LATER = NOW + timedelta(minutes=10)

PENDING = Task(
    id="a3f1c0de-0000-4000-8000-000000000001",
    task_type="work",
    shard="a",
    token="before",
    available_at=START,
    created_at=START,
    updated_at=START,
)
RUNNING = replace(
    PENDING, status=Status.RUNNING, attempt=1, worker_id="w1", lease_id="mine", lease_expires_at=LATER
)
ENDED = replace(PENDING, attempt=1, completed_at=NOW)

STATES: dict[str, Task] = {
    "pending": PENDING,
    "routed": replace(PENDING, inbox="w1"),
    "due now": replace(PENDING, available_at=NOW),
    "clock lags": replace(PENDING, available_at=LATER, updated_at=LATER),
    "not due": replace(PENDING, available_at=LATER),
    "waiting": replace(PENDING, flow=Flow(depends_on=("d",), waits_for=("d",))),
    "in line": replace(PENDING, flow=Flow(group="g", turn=1, waits_for=("group",))),
    "past expiry": replace(PENDING, expires_at=NOW),
    "running": RUNNING,
    "last try": replace(RUNNING, retry_count=3, max_reschedules=0),
    "lapsed": replace(RUNNING, lease_expires_at=NOW),
    "last lapsed": replace(RUNNING, lease_expires_at=NOW, retry_count=3),
    "cancelling": replace(RUNNING, cancel_requested=True),
    "canc. lapsed": replace(RUNNING, cancel_requested=True, lease_expires_at=NOW),
    "given back": replace(PENDING, attempt=1, settled_lease_id="mine"),
    "completed": replace(ENDED, status=Status.COMPLETED),
    "by me": replace(ENDED, status=Status.COMPLETED, settled_lease_id="mine"),
    "failed": replace(ENDED, status=Status.FAILED),
    "unfollowed": replace(ENDED, status=Status.FAILED, on_failure="alert"),
    "cancelled": replace(ENDED, status=Status.CANCELLED, cancel_requested=True),
    "broken": replace(
        ENDED,
        status=Status.CANCELLED,
        cancel_requested=True,
        flow=Flow(depends_on=("d",), waits_for=("d",), broken_by="d"),
    ),
    "left in line": replace(ENDED, status=Status.EXPIRED, flow=Flow(group="g", turn=1, waits_for=("group",))),
    "expired": replace(ENDED, status=Status.EXPIRED),
    "archived": replace(ENDED, status=Status.ARCHIVED, archived_from=Status.COMPLETED),
}

COMMANDS: dict[str, Command] = {
    "claim": Claim("t", lease_id="mine", worker_id="w2", lease_s=60),
    "renew": Renew("t", lease_id="mine"),
    "complete": Complete("t", lease_id="mine"),
    "fail": Fail("t", lease_id="mine", error="boom", unit=0.5),
    "fail!": Fail("t", lease_id="mine", error="boom", unit=0.5, permanent=True),
    "later": Reschedule("t", lease_id="mine", delay_s=60),
    "release": Release("t", lease_id="mine"),
    "lapse": Lapse("t", lease_id="mine", unit=0.5),
    "cancel": Cancel("t"),
    "expire": Expire("t"),
    "replay": Replay("t"),
    "archive": Archive("t"),
    "unarchive": Unarchive("t"),
    "follow": FollowUp("t", attempt=1),
    "depend": AddDependent("t", "j"),
    "meet": Meet("t", ("d",)),
    "break": Break("t", "d", Status.FAILED),
    "revive": Revive("t"),
    "turn": TakeTurn("t", 1, None),
    "offer": Offer("t"),
}

# fmt: off
TABLE = """
              claim    renew    complete   fail       fail!      later      release    lapse      cancel     expire   replay   archive   unarchive  follow  depend   meet       break      revive   turn     offer
pending       running  -        -          -          -          -          -          -          cancelled  -        -        -         -          =       pending  =          -          -        =        =
routed        running  -        -          -          -          -          -          -          cancelled  -        -        -         -          =       pending  =          -          -        =        pending
due now       running  -        -          -          -          -          -          -          cancelled  -        -        -         -          =       pending  =          -          -        =        =
clock lags    running  -        -          -          -          -          -          -          cancelled  -        -        -         -          =       pending  =          -          -        =        =
not due       -        -        -          -          -          -          -          -          cancelled  -        -        -         -          =       pending  =          -          -        =        =
waiting       -        -        -          -          -          -          -          -          cancelled  -        -        -         -          =       pending  pending    cancelled  -        =        =
in line       -        -        -          -          -          -          -          -          cancelled  -        -        -         -          =       pending  =          -          -        pending  =
past expiry   -        -        -          -          -          -          -          -          cancelled  expired  -        -         -          =       pending  =          -          -        =        =
running       =        running  completed  pending    failed     pending    pending    -          running    -        -        -         -          =       running  =          -          -        =        -
last try      =        running  completed  failed     failed     failed     pending    -          running    -        -        -         -          =       running  =          -          -        =        -
lapsed        =        running  completed  pending    failed     pending    pending    pending    running    -        -        -         -          =       running  =          -          -        =        -
last lapsed   =        running  completed  failed     failed     pending    pending    failed     running    -        -        -         -          =       running  =          -          -        =        -
cancelling    =        running  cancelled  cancelled  cancelled  cancelled  cancelled  -          =          -        -        -         -          =       running  =          -          -        =        -
canc. lapsed  =        running  cancelled  cancelled  cancelled  cancelled  cancelled  cancelled  =          -        -        -         -          =       running  =          -          -        =        -
given back    running  -        =          =          =          =          =          -          cancelled  -        -        -         -          =       pending  =          -          -        =        =
completed     -        -        -          -          -          -          -          -          -          -        -        archived  -          =       -        =          -          -        =        -
by me         -        -        =          =          =          =          =          -          -          -        -        archived  -          =       -        =          -          -        =        -
failed        -        -        -          -          -          -          -          -          -          -        pending  archived  -          =       -        =          -          -        =        -
unfollowed    -        -        -          -          -          -          -          -          -          -        pending  archived  -          failed  -        =          -          -        =        -
cancelled     -        -        -          -          -          -          -          -          =          -        pending  archived  -          =       -        =          -          -        =        -
broken        -        -        -          -          -          -          -          -          =          -        pending  archived  -          =       -        cancelled  -          pending  =        -
left in line  -        -        -          -          -          -          -          -          -          -        pending  archived  -          =       expired  =          -          -        expired  -
expired       -        -        -          -          -          -          -          -          -          -        pending  archived  -          =       -        =          -          -        =        -
archived      -        -        -          -          -          -          -          -          -          -        -        =         completed  =       -        =          -          -        =        -
"""  # noqa: E501
# fmt: on


def cells() -> list[tuple[str, str, str]]:
    header, *rows = TABLE.strip("\n").splitlines()
    return [
        (row[:14].strip(), name, cell)
        for row in rows
        for name, cell in zip(header.split(), row[14:].split(), strict=True)
    ]


def shown(before: Task, answer: Task | Rejected) -> str:
    if isinstance(answer, Rejected):
        return "-"
    return "=" if answer is before else answer.status.value


def test_the_table_has_every_state_and_every_command() -> None:
    assert {(state, name) for state, name, _ in cells()} == {(s, c) for s in STATES for c in COMMANDS}
    assert {task.status for task in STATES.values()} == set(Status)
    kinds = {kind for kind in vars(lifecycle).values() if isinstance(kind, type) and issubclass(kind, Command)}
    assert {type(command) for command in COMMANDS.values()} == kinds - {Command, Held}


@pytest.mark.parametrize("state", STATES)
def test_each_command_moves_a_task_as_the_table_says(state: str) -> None:
    said = {name: cell for row, name, cell in cells() if row == state}
    done = {name: shown(STATES[state], decide(STATES[state], c, now=NOW)) for name, c in COMMANDS.items()}
    assert done == said


@pytest.mark.parametrize("state", STATES)
def test_with_another_lease_a_holder_command_is_rejected_everywhere(state: str) -> None:
    for command in COMMANDS.values():
        if isinstance(command, Held):
            stale = type(command)(**{**fields(command), "lease_id": "theirs"})
            answer = decide(STATES[state], stale, now=NOW)
            assert isinstance(answer, Rejected)
            assert answer.reason is Reason.LEASE_LOST


def fields(command: Command) -> dict[str, object]:
    return {name: getattr(command, name) for name in command.__struct_fields__}


def moved(state: str, command: Command) -> Task:
    answer = decide(STATES[state], command, now=NOW)
    assert isinstance(answer, Task)
    return answer


def test_a_claim_takes_the_lease_for_as_long_as_asked_or_as_the_task_may_run() -> None:
    asked = moved("pending", COMMANDS["claim"])
    assert (asked.worker_id, asked.lease_id, asked.attempt) == ("w2", "mine", 1)
    assert asked.lease_expires_at == NOW + timedelta(seconds=60)
    own = moved("pending", Claim("t", lease_id="mine", worker_id="w2"))
    assert own.lease_expires_at == NOW + timedelta(seconds=LEASE_S), "a task without a timeout"
    limited = decide(replace(STATES["pending"], timeout_seconds=7), Claim("t", "mine", "w2"), now=NOW)
    assert isinstance(limited, Task)
    assert limited.lease_expires_at == NOW + timedelta(seconds=7)


def test_rejections_tell_apart_what_to_do_next() -> None:
    def why(state: str, name: str) -> Reason:
        answer = decide(STATES[state], COMMANDS[name], now=NOW)
        assert isinstance(answer, Rejected)
        return answer.reason

    assert why("not due", "claim") is Reason.NOT_DUE
    assert why("past expiry", "claim") is Reason.PAST_EXPIRY
    assert why("completed", "claim") is Reason.WRONG_STATE
    assert why("running", "lapse") is Reason.LEASE_VALID
    assert why("completed", "complete") is Reason.LEASE_LOST


def test_a_renewal_moves_the_end_of_the_lease_and_keeps_progress_unless_told_new() -> None:
    first = moved("running", Renew("t1", lease_id="mine", lease_s=600, progress={"done": 1}))
    assert (first.lease_expires_at, first.progress) == (NOW + timedelta(seconds=600), {"done": 1})
    second = decide(first, Renew("t2", lease_id="mine", lease_s=900), now=NOW)
    assert isinstance(second, Task)
    assert (second.lease_expires_at, second.progress) == (NOW + timedelta(seconds=900), {"done": 1})


def test_a_task_that_kills_its_workers_ends_in_failed_with_that_reason() -> None:
    task = replace(STATES["pending"], max_retries=1_000, max_deliveries=3)
    for delivery in range(1, 4):
        at = NOW + timedelta(hours=delivery)
        running = decide(task, Claim(f"c{delivery}", f"l{delivery}", f"w{delivery}", 60), now=at)
        assert isinstance(running, Task)
        assert running.deliveries == delivery
        after = decide(running, Lapse(f"x{delivery}", f"l{delivery}", 0.5), now=at + timedelta(minutes=2))
        assert isinstance(after, Task)
        task = after
    assert task.status is Status.FAILED
    assert task.last_error == (
        "crash loop: 3 workers in a row died or stalled while they ran it, the last one w3 in attempt 3"
    )


def test_whoever_settles_an_attempt_ends_the_row_of_deliveries() -> None:
    again = moved("running", Release("t", lease_id="mine"))
    assert (again.deliveries, again.retry_count, again.available_at) == (0, 0, NOW)
    later = moved("running", Release("t", lease_id="mine", delay_s=9))
    assert later.available_at == NOW + timedelta(seconds=9)


def test_a_routine_renewal_does_not_cut_short_a_longer_lease() -> None:
    assert moved("running", COMMANDS["renew"]).lease_expires_at == LATER
    late = moved("lapsed", COMMANDS["renew"])
    assert late.lease_expires_at == NOW + timedelta(seconds=LEASE_S)
    assert moved("running", Renew("t", lease_id="mine", lease_s=0.001)).lease_expires_at == LATER


def test_completion_keeps_the_output_and_who_did_it_and_forgets_earlier_errors() -> None:
    done = decide(
        replace(RUNNING, last_error="boom", traceback="..."),
        Complete("t", lease_id="mine", output=5, output_ref="data/x"),
        now=NOW,
    )
    assert isinstance(done, Task)
    assert (done.output, done.output_ref, done.worker_id, done.completed_at) == (5, "data/x", "w1", NOW)
    assert (done.last_error, done.traceback) == (None, None)


def test_a_failure_keeps_its_error_and_waits_as_the_policy_says() -> None:
    fail = Fail("t", lease_id="mine", error="boom", unit=0.5, traceback="line 1")
    retried = moved("running", fail)
    assert (retried.last_error, retried.traceback, retried.retry_count) == ("boom", "line 1", 1)
    assert retried.available_at == NOW + timedelta(seconds=1)
    dead = moved("last try", fail)
    assert (dead.last_error, dead.retry_count, dead.worker_id) == ("boom", 3, None)


def test_a_handler_may_wish_for_its_own_delay() -> None:
    retried = moved("running", Fail("t", lease_id="mine", error="busy", unit=0.5, delay_s=0))
    assert retried.available_at == NOW


def test_rescheduling_and_releasing_cost_no_retry() -> None:
    later = moved("running", COMMANDS["later"])
    assert (later.retry_count, later.reschedule_count) == (0, 1)
    assert later.available_at == NOW + timedelta(seconds=60)
    released = moved("running", COMMANDS["release"])
    assert (released.retry_count, released.reschedule_count, released.available_at) == (0, 0, NOW)


def test_a_lapse_names_the_worker_that_vanished_and_leaves_a_newer_lease_alone() -> None:
    back = moved("lapsed", COMMANDS["lapse"])
    assert back.last_error is not None
    assert "w1" in back.last_error
    newer = decide(STATES["lapsed"], Lapse("t", lease_id="older", unit=0.5), now=NOW)
    assert isinstance(newer, Rejected)


def test_a_task_leaves_its_inbox_with_its_first_move() -> None:
    for name in ("claim", "cancel", "offer"):
        assert moved("routed", COMMANDS[name]).inbox is None
    assert moved("routed", COMMANDS["depend"]).inbox == "w1"


def test_a_cancellation_keeps_who_and_why_and_a_replay_wipes_the_slate() -> None:
    cancel = Cancel("t", by="ann", reason="duplicate")
    for state in ("pending", "running"):
        asked = moved(state, cancel)
        assert (asked.cancel_requested, asked.cancelled_by, asked.cancel_reason) == (True, "ann", "duplicate")
    tired = replace(STATES["cancelled"], retry_count=3, reschedule_count=2, expires_at=START, attempt=7)
    again = decide(tired, Replay("t"), now=NOW)
    assert isinstance(again, Task)
    assert (again.retry_count, again.reschedule_count, again.expires_at) == (0, 0, None)
    assert (again.cancel_requested, again.cancelled_by, again.cancel_reason) == (False, None, None)
    assert (again.attempt, again.available_at, again.completed_at) == (7, NOW, None)


def test_a_record_archived_without_its_origin_comes_back_as_failed() -> None:
    lost = replace(STATES["archived"], archived_from=None)
    back = decide(lost, Unarchive("t"), now=NOW)
    assert isinstance(back, Task)
    assert back.status is Status.FAILED
