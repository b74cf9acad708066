"""qo submit."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from qo.cli.queue import task_view
from qo.cli.queue.submission import options, read_input, read_orders
from qo.cli.session import Session, command, new_app
from qo.core.task import Task
from qo.errors import UsageError
from qo.queue.options import NewTask
from qo.queue.queue import Queue

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
        "options of this command hold for lines that do not say otherwise.",
    ),
]


def _option(flag: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(flag, metavar=metavar, help=help)


At = Annotated[str | None, _option("--at", "Not before this RFC 3339 time.", "TIME")]
Delay = Annotated[str | None, _option("--delay", "Not before this has passed, as 1h30m.", "DURATION")]
Key = Annotated[str | None, _option("--key", "Idempotency key: the same key always names the same task.")]
KeyScope = Annotated[str | None, _option("--key-scope", "Where the key is unique; otherwise within the type.")]
ExpiresIn = Annotated[str | None, _option("--expires-in", "Give up if unclaimed for this long.", "DURATION")]
ExpiresAt = Annotated[str | None, _option("--expires-at", "Give up if unclaimed at this time.", "TIME")]
Timeout = Annotated[
    str | None,
    _option("--timeout", "The longest one attempt may take [as the handler says, else 5m].", "DURATION"),
]
Retries = Annotated[int | None, _option("--retries", "Attempts after the first [3].")]
Priority = Annotated[int | None, _option("--priority", "0 to 9; 9 goes first [0].")]
Reschedules = Annotated[int | None, _option("--max-reschedules", "How often a handler may put it off [no limit].")]
Deliveries = Annotated[
    int | None, _option("--max-deliveries", "How many workers may die of it before it has failed [5].")
]
RetryInitial = Annotated[int | None, _option("--retry-initial-ms", "The rest before the first retry [1000].")]
RetryMax = Annotated[int | None, _option("--retry-max-ms", "The longest rest before a retry [60000].")]
RetryMultiplier = Annotated[float | None, _option("--retry-multiplier", "How much longer each rest is [2].")]
RetryJitter = Annotated[float | None, _option("--retry-jitter", "0.25 spreads each rest over ±25 % [0.25].")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it has ended; exit 8 if not completed.")]
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
    retry_initial_ms: RetryInitial = None,
    retry_max_ms: RetryMax = None,
    retry_multiplier: RetryMultiplier = None,
    retry_jitter: RetryJitter = None,
    wait: Wait = False,
    wait_timeout: WaitTimeout = None,
) -> int | None:
    """Submit a task, or many from a file.

    Prints the id of the task (with --json, the task). Everything is checked before anything is written.
    """
    given = {
        "at": at,
        "delay": delay,
        "key": key,
        "key_scope": key_scope,
        "expires_in": expires_in,
        "expires_at": expires_at,
        "timeout": timeout,
        "retries": retries,
        "priority": priority,
        "max_reschedules": max_reschedules,
        "max_deliveries": max_deliveries,
        "retry_initial_ms": retry_initial_ms,
        "retry_max_ms": retry_max_ms,
        "retry_multiplier": retry_multiplier,
        "retry_jitter": retry_jitter,
    }
    wait_s = task_view.wait_s(wait_timeout, "--wait-timeout")
    if wait_s is not None and not wait:
        raise UsageError("--wait-timeout needs --wait")
    if source is not None:
        return _submit_many(session, source, type, input, given, wait)
    if type is None:
        raise UsageError("say which task to submit: --type TYPE, or --from FILE for many")
    new = NewTask(type, read_input(input), options(given))
    return _submit_one(session, new, wait, wait_s)


def _submit_one(session: Session, new: NewTask, wait: bool, wait_s: float | None) -> int | None:
    async def put(queue: Queue) -> Task:
        return await queue.submit(new.task_type, new.input, new.options)

    async def put_and_wait(queue: Queue) -> Task:
        return await task_view.ended(queue, (await put(queue)).id, wait_s)

    task = session.ask(put_and_wait if wait else put)
    if wait:
        return task_view.show_ended(session, task)
    if session.json:
        session.output.document(task)
    else:
        session.output.line(task.id)
    return None


def _submit_many(
    session: Session,
    source: str,
    task_type: str | None,
    input: str | None,
    given: dict[str, Any],
    wait: bool,
) -> None:
    if input is not None or wait or given["key"] is not None:
        raise UsageError("--from takes no --input, --key or --wait: each line is a task of its own")
    orders = read_orders(source, task_type, given)
    if not orders:
        raise UsageError(f"there is no task in {source}")

    async def put(queue: Queue) -> list[Task]:
        return await queue.submit_many(orders)

    tasks = session.ask(put)
    if session.json:
        session.output.document(tasks)
        return
    for task in tasks:
        session.output.line(task.id)
