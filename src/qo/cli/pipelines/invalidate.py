"""qo invalidate."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from qo.cli.invocation import Session, command, new_app
from qo.cli.pipelines.dispatcher_client import ask
from qo.cli.pipelines.emit import check_numbers, fresh_key
from qo.errors import UsageError

app = new_app()


class Reason(StrEnum):
    REORG = "reorg"
    CORRECTION = "correction"
    MANUAL = "manual"
    SCHEMA_CHANGE = "schema_change"


@command(app, "invalidate")
def invalidate(
    session: Session,
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET[@PARTITION]", help="A published name or dag.job, with a partition.")
    ],
    start: Annotated[int | None, typer.Option("--start", help="Where the range begins.")] = None,
    end: Annotated[int | None, typer.Option("--end", help="Where the range ends; not part of it.")] = None,
    reason: Annotated[
        Reason, typer.Option("--reason", help="Why: reorg, correction, manual or schema_change [manual].")
    ] = Reason.MANUAL,
    key: Annotated[
        str | None, typer.Option("--key", help="Idempotency key: the same key again invalidates nothing.")
    ] = None,
    whole: Annotated[bool, typer.Option("--all", help="Everything that is committed in the dataset.")] = False,
) -> None:
    """Mark committed data as out of date, so that it is rebuilt.

    The jobs that the dataset triggers, and that have read this data, read it again.
    """
    name, _, partition = dataset.partition("@")
    if whole == (bool(partition) or start is not None or end is not None):
        raise UsageError("say what is out of date: DATASET@PARTITION, --start and --end, or --all")
    check_numbers(start=start, end=end)
    body: dict[str, Any] = {"dataset": name, "reason": str(reason), "key": key or fresh_key()}
    extent = {"partition_key": partition or None, "start": start, "end": end}
    body.update({field: value for field, value in extent.items() if value is not None})
    answer = ask(session, lambda client: client.post("/v1/invalidations", body))
    if session.json:
        session.output.document(answer)
    else:
        session.output.line(answer["invalidation_id"])
