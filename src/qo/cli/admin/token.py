"""qo token create, list, revoke."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from qo.cli.invocation import Session, command, new_app, new_group
from qo.cli.pipelines.dispatcher_client import ask, check_limit, pages, route
from qo.cli.pipelines.formatting import format_timestamp
from qo.core.durations import parse_duration_s
from qo.core.words import plural
from qo.errors import UsageError

app = new_app()
token = new_group(app, "token", "Create, list and revoke tokens for the dispatcher.")


class Role(StrEnum):
    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"
    WORKER = "worker"
    SCALER = "scaler"


@command(token, "create")
def create(
    session: Session,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The owner; actions with the token are attributed to this name.")
    ],
    role: Annotated[
        Role,
        typer.Option(
            "--role",
            help="reader: look; writer: also deploy and run; admin: also create tokens; worker: run tasks; "
            "scaler: see the load of runtimes [reader].",
        ),
    ] = Role.READER,
    expires_in: Annotated[
        str | None, typer.Option("--expires-in", metavar="DURATION", help="How long it is valid [until revoked].")
    ] = None,
    runtime: Annotated[
        list[str] | None,
        typer.Option(
            "--runtime", metavar="NAME", help="For a worker: only tasks of this runtime; may be repeated."
        ),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", metavar="NAME", help="For a worker: only tasks of this queue; may be repeated."),
    ] = None,
) -> None:
    """Create a token, and print it.

    It is printed only this once: only its hash is stored. Set it as QO_TOKEN; one for workers as QO_WORKER_TOKEN. A
    worker's token that is bound to runtimes or queues claims nothing else, whoever holds it.
    """
    body: dict[str, object] = {"name": name, "role": str(role)}
    if expires_in is not None:
        body["ttl_s"] = parse_duration_s(expires_in, "--expires-in")
    if (runtime or queue) and role is not Role.WORKER:
        raise UsageError(f"a {role} is bound to no runtime: --runtime and --queue are for --role worker")
    body |= {name: names for name, names in (("runtimes", runtime), ("queues", queue)) if names}
    created = ask(session, lambda client: client.post("/v1/tokens", body, repeatable=False))
    if session.json:
        session.output.document(created)
    else:
        session.output.line(created["token"])
        session.output.note(f"store it now, it is not shown again; its id is {created['id']}")


@command(token, "list")
def list_(
    session: Session,
    limit: Annotated[int, typer.Option("--limit", help="Show at most this many [200].", show_default=False)] = 200,
) -> None:
    """List the tokens, without their secrets."""
    check_limit(limit)
    tokens, more = ask(session, lambda client: pages(client, "/v1/tokens", "tokens", limit))
    if session.json:
        session.output.document(tokens)
        return
    rows = [
        (
            each["id"],
            each["name"],
            each["role"],
            _format_binding(each),
            format_timestamp(each["created_at"]),
            format_timestamp(each["expires_at"]),
            format_timestamp(each["revoked_at"]),
        )
        for each in tokens
    ]
    session.output.table(("id", "name", "role", "bound to", "created", "expires", "revoked"), rows)
    if more:
        session.output.note(f"stopped after {plural(limit, 'token')}; --limit shows more")


def _format_binding(token: Mapping[str, Any]) -> str:
    """Return the only runtimes and queues whose tasks a worker's token is for."""
    runtimes, queues = token.get("runtimes"), token.get("queues")
    parts = [f"{kind} {', '.join(names)}" for kind, names in (("runtime", runtimes), ("queue", queues)) if names]
    return "; ".join(parts)


@command(token, "revoke")
def revoke(
    session: Session,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="The token's id, as qo token list shows it.")],
) -> None:
    """Revoke a token: it is refused from now on."""
    answer = ask(session, lambda client: client.delete(route("tokens", token_id)))
    if session.json:
        session.output.document(answer)
    else:
        session.output.line(f"revoked {answer['name']} ({answer['id']})")
