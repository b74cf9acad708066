"""qo backfill start, list, show, pause, resume, cancel: rebuild partitions, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from qo.cli.invocation import Session, command, new_app
from qo.cli.pipelines.dispatcher_client import ask, check_limit, pages, route
from qo.cli.pipelines.emit import fresh_key
from qo.cli.pipelines.formatting import format_count, format_timestamp
from qo.core.words import plural
from qo.errors import TaskFailed, UsageError

if TYPE_CHECKING:
    from qo.api.public_client import UserClient

MISSING_SHOWN = 5  # How many keys of missing partitions are listed.
POLL_S = 1.0
_HELP = "Rebuild partitions, a few at a time."


class _Group(TyperGroup):
    """An argument that is no subcommand is the job of ``start``."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["start", *args]
        return super().resolve_command(ctx, args)


app = new_app()
backfill = new_app(help=_HELP, invoke_without_command=True, cls=_Group)


@backfill.callback(help=_HELP)
def _show_help(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


app.add_typer(backfill, name="backfill")

Id = Annotated[str, typer.Argument(metavar="ID", help="The id of the backfill.")]


@command(backfill, "start")
def start(
    session: Session,
    job: Annotated[str, typer.Argument(metavar="DAG.JOB", help="The job whose outputs are rebuilt.")],
    from_: Annotated[
        str | None, typer.Option("--from", metavar="KEY", help="The first partition [the first of all].")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="KEY", help="The last one, included [the last of all].")
    ] = None,
    at_once: Annotated[
        int,
        typer.Option(
            "--at-once", min=1, max=10_000, help="How many tasks to run at a time [4].", show_default=False
        ),
    ] = 4,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key: the same key again is the same backfill.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the backfill has ended.")] = False,
) -> None:
    """Start a backfill; `qo backfill DAG.JOB ...` is short for it.

    The job runs again for each committed partition of its input, from one key to the other. What is replaced is
    rebuilt downstream, too. Keys that are numbers are compared with the ranges of partitions that have them.
    """
    dag, dot, name = job.partition(".")
    if not dot or not name:
        raise UsageError(f"{job!r} is not a job: write DAG.JOB")
    body: dict[str, Any] = {"dag": dag, "job": name, "at_once": at_once, "key": key or fresh_key()}
    body |= {field: value for field, value in (("from_key", from_), ("to_key", to)) if value is not None}

    async def start_backfill(client: UserClient) -> Any:
        backfill = await client.post("/v1/backfills", body)
        if (
            not session.json and wait and backfill["missing"]
        ):  # Once the backfill is done, the dispatcher no longer knows them.
            session.output.note(f"not committed, and so left out: {_missing(backfill['missing'])}")
        return await _wait_until_ended(client, backfill["id"], session) if wait else backfill

    answer = ask(session, start_backfill)
    _show(session, answer)
    if wait and (failed := answer["tasks"].get("failed", 0)):
        raise TaskFailed(
            f"{plural(failed, 'task')} of backfill {answer['id']} failed: see qo run list {job} --status failed"
        )


async def _wait_until_ended(client: UserClient, id_: str, session: Session) -> Any:
    last_text = ""
    while True:
        backfill = await client.get(route("backfills", id_))
        if backfill["state"] in ("done", "cancelled"):
            return backfill
        if not backfill["live"]:
            raise TaskFailed(
                f"backfill {id_} waits: no live version has the job as it was when the backfill started; cancel the "
                "backfill and start it again"
            )
        text = f"{backfill['state']}: {_progress(backfill)}"
        if text != last_text and not session.json:
            session.output.note(text)
        last_text = text
        await asyncio.sleep(POLL_S)


@command(backfill, "list")
def list_(
    session: Session,
    dag: Annotated[str | None, typer.Option("--dag", help="Only those of this DAG.")] = None,
    limit: Annotated[int, typer.Option("--limit", help="Show at most this many [100].", show_default=False)] = 100,
) -> None:
    """List the backfills, newest first."""
    check_limit(limit)
    backfills, more = ask(session, lambda client: pages(client, "/v1/backfills", "backfills", limit, dag=dag))
    if session.json:
        session.output.document(backfills)
        return
    headers = ("backfill", "job", "from", "to", "state", "progress", "by", "created")
    rows = [
        (
            each["id"],
            f"{each['dag']}.{each['job']}",
            each["from_key"] or "",
            each["to_key"] or "",
            each["state"],
            _progress(each),
            each["created_by"],
            format_timestamp(each["created_at"]),
        )
        for each in backfills
    ]
    session.output.table(headers, rows)
    if more:
        session.output.note(f"stopped after {limit}; --limit shows more")


@command(backfill, "show")
def show(session: Session, id_: Id) -> None:
    """Show a backfill and its progress."""
    _show(session, ask(session, lambda client: client.get(route("backfills", id_))))


@command(backfill, "pause")
def pause(session: Session, id_: Id) -> None:
    """Pause a backfill: create no more of its tasks until it is resumed."""
    _apply(session, id_, "pause")


@command(backfill, "resume")
def resume(session: Session, id_: Id) -> None:
    """Resume a backfill."""
    _apply(session, id_, "resume")


@command(backfill, "cancel")
def cancel(session: Session, id_: Id) -> None:
    """Cancel a backfill and its pending tasks."""
    _apply(session, id_, "cancel")


def _apply(session: Session, id_: str, action: str) -> None:
    _show(session, ask(session, lambda client: client.post(route("backfills", id_, action))))


def _show(session: Session, each: Mapping[str, Any]) -> None:
    if session.json:
        session.output.document(each)
        return
    waits = "" if each["live"] else " (waits: no live version has the job as it was when the backfill started)"
    session.output.record(
        {
            "backfill": each["id"],
            "job": f"{each['dag']}.{each['job']}",
            "from": each["from_key"] or "the first partition",
            "to": each["to_key"] or "the last partition",
            "state": each["state"] + (waits if each["state"] == "running" else ""),
            "at once": str(each["at_once"]),
            "progress": _progress(each),
            "left out": f"not committed: {_missing(each['missing'])}" if each["missing"] else "",
            "created": f"{format_timestamp(each['created_at'])} by {each['created_by']}",
            "ended": format_timestamp(each["ended_at"]),
        }
    )


def _missing(keys: Sequence[str]) -> str:
    """Return the first keys, and how many more there are."""
    more = len(keys) - MISSING_SHOWN
    return ", ".join(keys[:MISSING_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _progress(each: Mapping[str, Any]) -> str:
    tasks = [f"{format_count(count)} {status}" for status, count in sorted(each["tasks"].items())]
    return ", ".join([*tasks, f"{format_count(each['left'])} to be made"])
