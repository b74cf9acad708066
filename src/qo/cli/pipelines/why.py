"""qo why."""

from __future__ import annotations

from typing import Annotated

import typer

from qo.cli.invocation import Session, command, new_app
from qo.cli.output import one_line
from qo.cli.pipelines.dispatcher_client import ask

app = new_app()


@command(app, "why")
def why(
    session: Session,
    target: Annotated[
        str,
        typer.Argument(
            metavar="DATASET[@PARTITION]",
            help="A published name or dag.job, with a partition or cursor (@cursor:N); or the id of an event or task.",
        ),
    ],
) -> None:
    """Explain why data is there, or why it is missing.

    Follows the data from its source: the events, the tasks they created, what those committed, and where it stopped.
    For data that is there, it says whether it is stale: made from inputs that have changed since.
    """
    answer = ask(session, lambda client: client.get("/v1/why", target=target))
    if session.json:
        session.output.document(answer)
        return
    for line in answer["lines"]:
        session.output.line(one_line(line))
