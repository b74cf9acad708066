"""qo source list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from qo.cli.invocation import Session, command, new_app, new_group
from qo.cli.pipelines.dispatcher_client import ask, check_limit, pages
from qo.cli.pipelines.formatting import format_timestamp
from qo.core.words import plural

app = new_app()
source = new_group(app, "source", "List sources, their state and their last error.")

HEADERS = ("source", "kind", "state", "version", "heard", "restarts", "note")


@command(source, "list")
def list_(
    session: Session,
    limit: Annotated[int, typer.Option("--limit", help="Show at most this many [200].", show_default=False)] = 200,
) -> None:
    """List the sources of pipelines, their state and their last error."""
    check_limit(limit)
    sources, more = ask(session, lambda client: pages(client, "/v1/sources", "sources", limit))
    if session.json:
        session.output.document(sources)
        return
    session.output.table(HEADERS, [_row(each) for each in sources])
    if more:
        session.output.note(f"stopped after {plural(limit, 'source')}; --limit shows more")


def _row(each: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"{each['dag']}.{each['job']}",
        each["kind"],
        "paused" if each["paused"] is not None else "held" if each["held"] is not None else each["state"],
        str(each["version"]) + ("" if each["active"] else " (staged)"),
        format_timestamp(each["heard_at"]),
        str(each["restarts"] or ""),
        each["paused"] or each["held"] or each["last_error"] or "",
    )
