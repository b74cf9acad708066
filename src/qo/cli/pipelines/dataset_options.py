"""Arguments and options that the commands of qo dataset share."""

from __future__ import annotations

from typing import Annotated

import typer

from qo.cli.invocation import Session
from qo.cli.pipelines.dispatcher_client import route

Name = Annotated[
    str,
    typer.Argument(metavar="DATASET", help="A published name, or dag.job, or dag.job[1] for its second output."),
]
Generation = Annotated[
    str | None, typer.Option("--generation", metavar="ID", help="This generation instead of the current one.")
]
Revision = Annotated[
    int | None, typer.Option("--revision", metavar="N", min=0, help="As of this version; see qo dataset history.")
]
Limit = Annotated[int, typer.Option("--limit", help="Show at most this many [100].", show_default=False)]


def dataset_path(name: str, more: str = "") -> str:
    return route("datasets", name) + more


def note_more(session: Session, more: bool, limit: int) -> None:
    if more:
        session.output.note(f"stopped after {limit}; --limit shows more")
