"""qo shards: which worker owns which shards."""

from __future__ import annotations

from datetime import datetime

from qo.cli.invocation import Runtime, Session, command, new_app
from qo.core.durations import format_duration
from qo.queue.queue import Queue
from qo.queue.shard_owners import OwnedShards, count_unowned, read_shard_owners

app = new_app()

HEADERS = ("shards", "number", "owner", "since", "heard", "expires")


@command(app, "shards")
def shards(session: Session, runtime: Runtime = None) -> None:
    """Show which worker owns which shards, and since when.

    Only for workers that lease shards (--shard-leasing). Shards without an owner are listed by every worker. The last
    column says when shards become another worker's if their owner does not report again.
    """

    async def read(queue: Queue) -> tuple[list[OwnedShards] | None, datetime]:
        return await read_shard_owners(queue), await queue.store.now()

    owned, now = session.ask(read, runtime)
    if session.json:
        session.output.document(owned or [])
        return
    if owned is None:
        session.output.note("no worker leases shards of this queue: every worker lists all of them")
        return
    session.output.table(HEADERS, [_row(each, now) for each in owned])
    if unowned := count_unowned(owned):
        session.output.note(f"{unowned} shards have no owner: every worker lists them")


def _row(each: OwnedShards, now: datetime) -> tuple[str, ...]:
    span = each.first if each.first == each.last else f"{each.first}-{each.last}"
    if each.worker_id is None:
        return span, str(each.shards), "none", "-", "-", "-"
    return (
        span,
        str(each.shards),
        each.worker_id,
        "moving" if each.moving else _ago(each.since, now),
        _ago(each.heard_at, now),
        _remaining(each.expires_at, now),
    )


def _ago(at: datetime | None, now: datetime) -> str:
    return "-" if at is None else f"{format_duration(max(0.0, (now - at).total_seconds()))} ago"


def _remaining(at: datetime | None, now: datetime) -> str:
    if at is None or at <= now:
        return "expired"
    return f"in {format_duration((at - now).total_seconds())}"
