"""The checker of a chaos run finds what is planted, and finds nothing wrong with what is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as changed
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from chaos import checker, expected, history, notes, rows
from chaos.notes import Execution
from chaos.plan import LASTS_S, Fault, plan
from qo.core.lifecycle import Claim, Command, Complete, Fail, Lapse, Release, Renew, Reschedule, decide
from qo.core.task import Task

pytestmark = pytest.mark.fast

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def lived(*steps: tuple[float, Command]) -> list[Task]:
    """All states of a task to which these things happened, each after so many seconds."""
    task = Task(
        id="ab", task_type="awaited", shard="a", token="0", available_at=START, created_at=START, updated_at=START
    )
    states = [task]
    for after_s, command in steps:
        task = decide(task, command, now=START + timedelta(seconds=after_s))
        assert isinstance(task, Task), task
        states.append(task)
    return states


RETRIED = lived(
    (1, Claim("1", "l1", "w1", 5.0)),
    (2.5, Renew("2", "l1", 5.0)),
    (8.3, Lapse("3", "l1", 0.7)),
    (10, Claim("4", "l2", "w2", 5.0)),
    (11, Fail("5", "l2", "refused", 0.2, traceback="...")),
    (20, Claim("6", "l3", "w2", 5.0)),
    (21, Release("7", "l3")),
    (22, Claim("8", "l4", "w1", 5.0)),
    (23, Reschedule("9", "l4", 3.0)),
    (27, Claim("10", "l5", "w1", 5.0)),
    (28, Complete("11", "l5", {"a": 1})),
)


def test_a_history_of_legal_moves_is_right() -> None:
    assert history.violations(RETRIED) == []
    assert history.lapsed(RETRIED) == {1}


@pytest.mark.parametrize("at", [at for at in range(len(RETRIED) - 1) if at not in (1, 2)])
def test_a_history_with_a_gap_is_found(at: int) -> None:
    """Of a claim and its renewal one may be missing without a trace: what is left is a claim."""
    assert history.violations([*RETRIED[:at], *RETRIED[at + 1 :]])


def test_histories_that_forked_are_found() -> None:
    """Two attempts had leases at once, and both settled; or a write is there twice, or changed what it must not."""
    first = lived((1, Claim("1", "l1", "w1", 60.0)), (5, Complete("2", "l1", "one")))
    second = lived((2, Claim("3", "l2", "w2", 60.0)), (6, Complete("4", "l2", "two")))
    assert history.violations([first[0], first[1], second[1], first[2]])
    assert history.violations([first[0], first[1], second[1], second[2], first[2]])
    assert history.violations([*first, second[2]])
    assert history.violations([*first, first[2]])
    assert history.violations([first[0], first[1], replace(first[2], attempt=2)])
    assert history.violations([])


def test_what_a_dying_server_left_behind_is_told_from_what_was_written_twice() -> None:
    """Two claims of one attempt: the first was never acknowledged, for the server died as it wrote it."""
    first = lived((1, Claim("1", "l1", "w1", 60.0)))
    second = lived((3, Claim("3", "l2", "w2", 60.0)), (6, Complete("4", "l2", "two")))
    forked = [first[0], first[1], *second[1:]]
    assert history.standing(forked, lambda task: task.token == "1") == second
    assert history.standing(forked, lambda task: False) == forked  # No server died.
    assert history.violations(history.standing(forked, lambda task: task.token == "3"))
    # What follows from it, took effect.
    assert history.standing(RETRIED, lambda task: True) == RETRIED


def test_a_lease_taken_away_too_early_is_found() -> None:
    early = lived((1, Claim("1", "l1", "w1", 5.0)), (7, Lapse("2", "l1", 0.5)))
    assert history.violations([*early[:2], replace(early[2], updated_at=START + timedelta(seconds=5))])


# Queue tasks


def ended(numbers: Sequence[int]) -> list[Task]:
    claim, done = (1, Claim("1", "l", "w", 5.0)), (2, Complete("2", "l"))
    last = lived(claim, done)[-1]
    return [
        replace(last, id=f"{kind}{number}", task_type=kind, input={"number": number}, output=output)
        for (kind, number), output in expected.outputs_of(numbers).items()
    ]


def test_lost_and_doubled_tasks_and_wrong_outputs_are_found() -> None:
    tasks, outputs = ended(range(10)), expected.outputs_of(range(10))
    assert len(tasks) == 10 + 2 * expected.CHILDREN
    assert checker.queue_violations(tasks, outputs) == []
    (lost,) = checker.queue_violations(tasks[1:], outputs)
    assert "1 missing" in lost
    (doubled,) = checker.queue_violations([*tasks, replace(tasks[0], id="again")], outputs)
    assert "1 too many" in doubled
    assert checker.queue_violations([*tasks[1:], replace(tasks[0], output=tasks[1].output)], outputs)
    pending = lived()[0]
    assert checker.queue_violations([*tasks[1:], replace(tasks[0], status=pending.status)], outputs)


# What ran


def test_two_attempts_at_once_are_found_unless_the_first_was_given_up() -> None:
    first, second = Execution("t", 1, "w1", 1.0, 5.0), Execution("t", 2, "w2", 3.0, 4.0)
    (wrong,) = notes.violations([first, second], lambda *_: False)
    assert "attempt 2 of w2 began while attempt 1 of w1 ran" in wrong
    assert notes.violations([first, second], lambda *lost: lost == ("t", 1)) == []
    assert notes.violations([changed(first, ended=2.0), second], lambda *_: False) == []
    assert notes.violations([changed(first, ended=None), second], lambda *_: False) == []
    assert notes.violations([changed(first, task_id="u"), second], lambda *_: False) == []


def test_an_attempt_that_ran_twice_is_found_though_it_was_given_up() -> None:
    lines = ["t 1 w1 begin 1.0", "t 1 w1 end 2.0", "t 1 w2 begin 3.0"]
    found = notes.executions(lines)
    assert found == [Execution("t", 1, "w1", 1.0, 2.0), Execution("t", 1, "w2", 3.0)]
    (wrong,) = notes.violations(found, lambda *_: True)
    assert "ran twice" in wrong


# Rows of the state

Row = dict[str, Any]


def at(second: int) -> datetime:
    return START + timedelta(seconds=second)


def job_rows() -> tuple[list[Row], list[Row], list[Row]]:
    """Of a job with two partitions; the second took two attempts."""
    tasks = [
        {"id": "t1", "partition_key": "p1", "status": "completed", "attempt": 1, "last_error": None},
        {"id": "t2", "partition_key": "p2", "status": "completed", "attempt": 2, "last_error": None},
    ]
    attempts = [
        {"task_id": "t1", "attempt": 1, "outcome": "completed", "started_at": at(1), "ended_at": at(2)},
        {"task_id": "t2", "attempt": 1, "outcome": "timed_out", "started_at": at(1), "ended_at": at(9)},
        {"task_id": "t2", "attempt": 2, "outcome": "completed", "started_at": at(9), "ended_at": at(10)},
    ]
    commits = [{"task_id": "t1", "attempt": 1}, {"task_id": "t2", "attempt": 2}]
    return tasks, attempts, commits


def test_rows_of_a_quiet_day_are_right() -> None:
    assert rows.violations("job", ["p1", "p2"], *job_rows()) == []


@pytest.mark.parametrize(
    ("table", "change"),
    [
        pytest.param(0, lambda found: found.pop(), id="a task is lost"),
        pytest.param(0, lambda found: found.append({**found[0], "id": "t3"}), id="a task too many"),
        pytest.param(0, lambda found: found[0].update(status="failed"), id="a task failed"),
        pytest.param(0, lambda found: found[1].update(attempt=1), id="an older attempt stands"),
        pytest.param(1, lambda found: found.pop(0), id="an attempt is missing"),
        pytest.param(1, lambda found: found[1].update(outcome="completed"), id="two were accepted"),
        pytest.param(1, lambda found: found[2].update(started_at=at(8)), id="two at once"),
        pytest.param(1, lambda found: found[1].update(ended_at=None), id="one that has not ended"),
        pytest.param(2, lambda found: found.pop(), id="a commit is missing"),
        pytest.param(2, lambda found: found.append(dict(found[0])), id="a commit too many"),
        pytest.param(2, lambda found: found[1].update(attempt=1), id="another attempt was committed"),
    ],
)
def test_rows_that_are_wrong_are_found(table: int, change: Any) -> None:
    tables = job_rows()
    change(tables[table])
    assert rows.violations("job", ["p1", "p2"], *tables)


def test_a_row_too_many_or_too_few_is_found() -> None:
    quiet = checker.quiet_tables({"first": ["p1", "p2"], "second": ["p1"], "counted": ["f.txt"]})
    assert {job: len(table) for job, table in quiet.items()} == {"first": 2, "second": 2, "counted": 6}
    assert checker.table_violations(quiet, quiet) == []
    (few,) = checker.table_violations({**quiet, "second": quiet["second"][1:]}, quiet)
    assert few.startswith("second: rows: 1 missing")
    (many,) = checker.table_violations({**quiet, "first": [*quiet["first"], quiet["first"][0]]}, quiet)
    assert many.startswith("first: rows: 1 too many")


# Faults


def test_a_seed_draws_the_same_faults_and_every_kind_in_half_a_minute() -> None:
    names = ("dispatcher", "scheduler", "monitor", "w1", "p1")
    targets = dict.fromkeys(LASTS_S, names)
    assert plan(7, 600, targets) == plan(7, 600, targets) != plan(8, 600, targets)
    assert {each.kind for each in plan(7, 45, targets)} == set(LASTS_S)
    killed = {each.target for each in plan(7, 600, targets) if each.kind == "kill"}
    assert killed == set(names)
    assert {each.kind for each in plan(7, 600, {"kill": names, "restart": ()})} == {"kill"}
    assert str(Fault(1.0, "kill", "w1", 0.0)) == "kill w1"
