"""qo backfill: have partitions made once more, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from qo.cli.pipelines.dispatcher import ask, check_limit, pages, route
from qo.cli.pipelines.emit import fresh_key
from qo.cli.pipelines.formatting import shown_count, shown_instant
from qo.cli.session import Session, command, new_app
from qo.core.words import plural
from qo.errors import TaskFailed, UsageError

if TYPE_CHECKING:
    from qo.api.public_client import UserClient

MISSING_SHOWN = 5  # Keys of partitions that are not there.
LOOK_S = 1.0
_HELP = "Rebuild partitions, a few at a time."


class _Group(TyperGroup):
    """What is none of its commands is the job to begin a backfill of."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["start", *args]
        return super().resolve_command(ctx, args)


app = new_app()
backfill = new_app(help=_HELP, invoke_without_command=True, cls=_Group)


@backfill.callback(help=_HELP)
def _alone(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


app.add_typer(backfill, name="backfill")

Id = Annotated[str, typer.Argument(metavar="ID", help="The id of the backfill.")]


@command(backfill, "start")
def start(
    session: Session,
    job: Annotated[str, typer.Argument(metavar="DAG.JOB", help="The job whose outputs are made once more.")],
    from_: Annotated[
        str | None, typer.Option("--from", metavar="KEY", help="The first partition [the first of all].")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="KEY", help="The last one, included [the last of all].")
    ] = None,
    at_once: Annotated[
        int, typer.Option("--at-once", min=1, max=10_000, help="So many tasks at a time [4].", show_default=False)
    ] = 4,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key: the same key again is the same backfill.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is done.")] = False,
) -> None:
    """Begin a backfill; `qo backfill DAG.JOB ...` says the same.

    The committed partitions of what the job reads, from one key to the other, are worked on once more. What they
    replace is made anew downstream, too. Numbers are compared with the ranges of partitions, if these have some.
    """
    dag, dot, name = job.partition(".")
    if not dot or not name:
        raise UsageError(f"{job!r} is no job: write DAG.JOB")
    body: dict[str, Any] = {"dag": dag, "job": name, "at_once": at_once, "key": key or fresh_key()}
    body |= {field: value for field, value in (("from_key", from_), ("to_key", to)) if value is not None}

    async def begin(client: UserClient) -> Any:
        made = await client.post("/v1/backfills", body)
        if (
            not session.json and wait and made["missing"]
        ):  # Said below, otherwise: of one that is done, nobody knows.
            session.output.note(f"not committed, and so left out: {_missing(made['missing'])}")
        return await _done(client, made["id"], session) if wait else made

    answer = ask(session, begin)
    _show(session, answer)
    if wait and (failed := answer["tasks"].get("failed", 0)):
        raise TaskFailed(
            f"{plural(failed, 'task')} of backfill {answer['id']} failed: see qo run list {job} --status failed"
        )


async def _done(client: UserClient, id_: str, session: Session) -> Any:
    told = ""
    while True:
        found = await client.get(route("backfills", id_))
        if found["state"] in ("done", "cancelled"):
            return found
        if not found["live"]:
            raise TaskFailed(f"backfill {id_} waits: no live version has the job as it was when it began")
        text = f"{found['state']}: {_progress(found)}"
        if text != told and not session.json:
            session.output.note(text)
        told = text
        await asyncio.sleep(LOOK_S)


@command(backfill, "list")
def list_(
    session: Session,
    dag: Annotated[str | None, typer.Option("--dag", help="Only those of this DAG.")] = None,
    limit: Annotated[int, typer.Option("--limit", help="Show at most this many [100].", show_default=False)] = 100,
) -> None:
    """List the backfills, newest first."""
    check_limit(limit)
    found, more = ask(session, lambda client: pages(client, "/v1/backfills", "backfills", limit, dag=dag))
    if session.json:
        session.output.document(found)
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
            shown_instant(each["created_at"]),
        )
        for each in found
    ]
    session.output.table(headers, rows)
    if more:
        session.output.note(f"stopped after {limit}; --limit shows more")


@command(backfill, "show")
def show(session: Session, id_: Id) -> None:
    """Show a backfill, and how far it is."""
    _show(session, ask(session, lambda client: client.get(route("backfills", id_))))


@command(backfill, "pause")
def pause(session: Session, id_: Id) -> None:
    """Make no more of its tasks for now."""
    _move(session, id_, "pause")


@command(backfill, "resume")
def resume(session: Session, id_: Id) -> None:
    """Let a backfill go on."""
    _move(session, id_, "resume")


@command(backfill, "cancel")
def cancel(session: Session, id_: Id) -> None:
    """End a backfill; what waits of it is cancelled."""
    _move(session, id_, "cancel")


def _move(session: Session, id_: str, where: str) -> None:
    _show(session, ask(session, lambda client: client.post(route("backfills", id_, where))))


def _show(session: Session, each: Mapping[str, Any]) -> None:
    if session.json:
        session.output.document(each)
        return
    waits = "" if each["live"] else " (waits: no live version has the job as it was)"
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
            "created": f"{shown_instant(each['created_at'])} by {each['created_by']}",
            "ended": shown_instant(each["ended_at"]),
        }
    )


def _missing(keys: Sequence[str]) -> str:
    """The first of them, and how many more are known."""
    more = len(keys) - MISSING_SHOWN
    return ", ".join(keys[:MISSING_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _progress(each: Mapping[str, Any]) -> str:
    tasks = [f"{shown_count(count)} {status}" for status, count in sorted(each["tasks"].items())]
    return ", ".join([*tasks, f"{shown_count(each['left'])} to be made"])
