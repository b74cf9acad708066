"""qo submit."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from qo.cli.invocation import Session, command, new_app, setting_option
from qo.cli.queue import task_view
from qo.cli.queue.submission import read_input, read_tasks
from qo.core.task import Task
from qo.errors import UsageError
from qo.queue.options import NewTask
from qo.queue.queue import Queue
from qo.queue.task_document import OPTION_NAMES, options

app = new_app()


Type = Annotated[str | None, typer.Option("--type", "-t", help="The task type: which handler runs it.")]
Input = Annotated[
    str | None, typer.Option("--input", "-i", metavar="JSON|@FILE|-", help="The input; - reads standard input.")
]
Source = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FILE|-",
        help='Submit one task per line, each a JSON object such as {"type": "t", "input": {}}; the other '
        "options are the defaults of all lines.",
    ),
]


def _option(flag: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(flag, metavar=metavar, help=help)


At = Annotated[str | None, _option("--at", "Do not run it before this RFC 3339 time.", "TIME")]
Delay = Annotated[str | None, _option("--delay", "Do not run it before this has passed, as 1h30m.", "DURATION")]
Key = Annotated[str | None, _option("--key", "Idempotency key: the same key always names the same task.")]
KeyScope = Annotated[str | None, _option("--key-scope", "The scope in which the key is unique [the task type].")]
ExpiresIn = Annotated[
    str | None, _option("--expires-in", "Expire if no worker claims it for this long.", "DURATION")
]
ExpiresAt = Annotated[
    str | None, _option("--expires-at", "Expire if no worker has claimed it by this time.", "TIME")
]
Timeout = Annotated[
    str | None,
    _option("--timeout", "The longest one attempt may take [as the handler says, else 5m].", "DURATION"),
]
Retries = Annotated[int | None, _option("--retries", "Attempts after the first [3].")]
Priority = Annotated[int | None, _option("--priority", "0 to 9; 9 goes first [0].")]
Reschedules = Annotated[
    int | None, _option("--max-reschedules", "How often a handler may reschedule it [no limit].")
]
Deliveries = Annotated[
    int | None, _option("--max-deliveries", "How many workers may die while they run it before it fails [5].")
]
OnFailure = Annotated[
    str | None, _option("--on-failure", "The type of the task to submit if this one fails for good.", "TYPE")
]
RetryInitial = Annotated[int | None, _option("--retry-initial-ms", "The delay before the first retry [1000].")]
RetryMax = Annotated[int | None, _option("--retry-max-ms", "The longest delay before a retry [60000].")]
RetryMultiplier = Annotated[
    float | None, _option("--retry-multiplier", "The factor by which each delay grows [2].")
]
RetryJitter = Annotated[
    float | None, _option("--retry-jitter", "The jitter: 0.25 spreads each delay over ±25 % [0.25].")
]
DependsOn = Annotated[
    list[str] | None, _option("--depends-on", "Run it only when this task has completed; may be repeated.", "TASK")
]
OnDependencyFailure = Annotated[
    str | None,
    _option("--on-dependency-failure", "If such a task fails: cancel this one, or run it all the same [cancel]."),
]
Group = Annotated[str | None, _option("--group", "Tasks of one group run one at a time, in order.", "NAME")]
UniqueKey = Annotated[
    str | None,
    _option("--unique", "Not if a task of this type and key is pending or running: return that one.", "KEY"),
]
UniqueFor = Annotated[
    str | None, _option("--unique-for", "Also not for so long after that one was submitted.", "DURATION")
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it has ended; exit 8 unless it completed.")]
WaitTimeout = Annotated[str | None, _option("--wait-timeout", "Wait no longer than this.", "DURATION")]


@command(app, "submit")
def submit(
    session: Session,
    type: Type = None,
    input: Input = None,
    source: Source = None,
    at: At = None,
    delay: Delay = None,
    key: Key = None,
    key_scope: KeyScope = None,
    expires_in: ExpiresIn = None,
    expires_at: ExpiresAt = None,
    timeout: Timeout = None,
    retries: Retries = None,
    priority: Priority = None,
    max_reschedules: Reschedules = None,
    max_deliveries: Deliveries = None,
    on_failure: OnFailure = None,
    depends_on: DependsOn = None,
    on_dependency_failure: OnDependencyFailure = None,
    group: Group = None,
    unique: UniqueKey = None,
    unique_for: UniqueFor = None,
    retry_initial_ms: RetryInitial = None,
    retry_max_ms: RetryMax = None,
    retry_multiplier: RetryMultiplier = None,
    retry_jitter: RetryJitter = None,
    wait: Wait = False,
    wait_timeout: WaitTimeout = None,
    dispatch: Annotated[str | None, setting_option("queue.dispatch")] = None,
    routing: Annotated[str | None, setting_option("queue.routing")] = None,
) -> int | None:
    """Submit a task, or many from a file.

    Prints the id of the task (with --json, the task). Everything is checked before anything is written.
    """
    arguments = locals()
    values = {name: arguments[name] for name in OPTION_NAMES}
    flags = {"queue.dispatch": dispatch, "queue.routing": routing}
    wait_s = task_view.parse_wait_s(wait_timeout, "--wait-timeout")
    if wait_s is not None and not wait:
        raise UsageError("--wait-timeout needs --wait")
    if source is not None:
        return _submit_many(session, _read_lines(source, type, input, values, wait), flags)
    if type is None:
        raise UsageError("give the task to submit: --type TYPE, or --from FILE for many")
    new = NewTask(type, read_input(input), options(values))
    return _submit_one(session, new, flags, wait, wait_s)


def _submit_one(
    session: Session, new: NewTask, flags: dict[str, Any], wait: bool, wait_s: float | None
) -> int | None:
    async def submit_task(queue: Queue) -> Task:
        task, created = await queue.submit_or_find(new.task_type, new.input, new.options)
        if not created and new.options.unique is not None:
            session.output.note("it was there already")
        return task

    async def submit_and_wait(queue: Queue) -> Task:
        return await task_view.wait_until_ended(queue, (await submit_task(queue)).id, wait_s)

    task = session.ask(submit_and_wait if wait else submit_task, flags=flags)
    if wait:
        return task_view.show_ended(session, task)
    if session.json:
        session.output.document(task)
    else:
        session.output.line(task.id)
    return None


def _read_lines(
    source: str, task_type: str | None, input: str | None, values: dict[str, Any], wait: bool
) -> list[NewTask]:
    """Return the tasks of a file. Raises UsageError for options that only a single task can have."""
    if input is not None or wait or values["key"] is not None:
        raise UsageError("--from takes no --input, --key or --wait: each line is a task of its own")
    new_tasks = read_tasks(source, task_type, values)
    if not new_tasks:
        raise UsageError(f"there is no task in {source}")
    return new_tasks


def _submit_many(session: Session, new_tasks: list[NewTask], flags: dict[str, Any]) -> None:
    async def submit_tasks(queue: Queue) -> list[Task]:
        return await queue.submit_many(new_tasks)

    tasks = session.ask(submit_tasks, flags=flags)
    if session.json:
        session.output.document(tasks)
        return
    for task in tasks:
        session.output.line(task.id)
