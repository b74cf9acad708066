"""qo emit."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from qo.cli.invocation import Session, command, new_app
from qo.cli.pipelines.dispatcher_client import ask, route
from qo.cli.queue.submission import read_input
from qo.core.pipeline.event import NUMBER_MAX
from qo.errors import UsageError

app = new_app()


@command(app, "emit")
def emit(
    session: Session,
    source: Annotated[str, typer.Argument(metavar="DAG.JOB", help="The source job that has new data.")],
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", metavar="KEY", help="The partition that is new.")
    ] = None,
    start: Annotated[int | None, typer.Option("--start", help="Where its range begins.")] = None,
    end: Annotated[int | None, typer.Option("--end", help="Where its range ends; not part of it.")] = None,
    cursor: Annotated[int | None, typer.Option("--cursor", help="The new position of the cursor.")] = None,
    output: Annotated[
        int, typer.Option("--output", help="Which output of the source [0].", show_default=False)
    ] = 0,
    attributes: Annotated[
        str | None,
        typer.Option(
            "--attributes", "-a", metavar="JSON|@FILE|-", help="An object that is passed to the operators."
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key: the same key again emits nothing.")
    ] = None,
) -> None:
    """Announce new data of a source.

    Prints the id of the event. Without --key each call creates a new event.
    """
    dag, job = split(source)
    if (partition is None) == (cursor is None):
        raise UsageError("say what is new: --partition KEY (with --start and --end) or --cursor N, one of the two")
    check_numbers(output=output, cursor=cursor, start=start, end=end)
    event: dict[str, Any] = {
        "output": output,
        "partition_key": partition,
        "cursor": cursor,
        "start": start,
        "end": end,
    }
    event = {name: value for name, value in event.items() if value is not None}
    if attributes is not None:
        event["attributes"] = _read_object(attributes)
    body = {"idempotency_key": key or fresh_key(), "events": [event]}
    answer = ask(session, lambda client: client.post(route("sources", dag, job, "events"), body))
    if session.json:
        session.output.document(answer)
        return
    for event_id in answer["event_ids"]:
        session.output.line(event_id)
    if answer["repeated"]:
        session.output.note("this key was used before for the same events: nothing new was emitted")
    if answer["paused"]:
        session.output.note(f"{source} is paused: the events are kept, and run after qo dag resume")
    sys.stdout.flush()


def split(source: str) -> tuple[str, str]:
    dag, dot, job = source.partition(".")
    if not (dag and dot and job) or "/" in source:
        raise UsageError(f"{source!r} is not a source: write DAG.JOB, as in qo source list")
    return dag, job


def check_numbers(**numbers: int | None) -> None:
    """Raise UsageError, with the name of the option, for a number that no cursor and no end of a range can be."""
    for name, number in numbers.items():
        if number is not None and not 0 <= number <= NUMBER_MAX:
            raise UsageError(f"--{name} must be from 0 to {NUMBER_MAX}, not {number}")


def fresh_key() -> str:
    from qo.ambient import SYSTEM

    return f"cli-{SYSTEM.task_id()}"


def _read_object(text: str) -> Any:
    value = read_input(text, "--attributes")
    if not isinstance(value, dict):
        raise UsageError("--attributes must be a JSON object")
    return value  # pyright: ignore[reportUnknownVariableType]
