"""qo dag waiting: the partitions that wait for others."""

from __future__ import annotations

from typing import Annotated

import typer

from qo.cli.invocation import Session
from qo.cli.pipelines.dispatcher_client import ask, check_limit, pages, route
from qo.cli.pipelines.formatting import format_timestamp

Name = Annotated[str, typer.Argument(metavar="DAG", help="The name of the DAG.")]
Job = Annotated[str | None, typer.Option("--job", metavar="JOB", help="Only partitions of this job.")]
Version = Annotated[
    int | None, typer.Option("--version", min=1, help="Of this live version instead of the active one.")
]
Limit = Annotated[int, typer.Option("--limit", help="Show at most this many [100].", show_default=False)]


def waiting(session: Session, name: Name, job: Job = None, version: Version = None, limit: Limit = 100) -> None:
    """List partitions that are made of others and wait for the rest of them, such as months for their days."""
    check_limit(limit)
    path = route("dags", name, "waiting")
    partitions, more = ask(
        session, lambda client: pages(client, path, "partitions", limit, job=job, version=version)
    )
    if session.json:
        session.output.document(partitions)
        return
    session.output.table(
        ("job", "partition", "since", "made at the latest", "because"),
        [
            (
                each["job"],
                each["partition_key"],
                format_timestamp(each["since"]),
                format_timestamp(each["due_at"]),
                each["because"],
            )
            for each in partitions
        ],
    )
    if more:
        session.output.note(f"stopped after {limit} partitions; --limit shows more")
