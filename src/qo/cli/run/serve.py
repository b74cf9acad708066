"""qo serve run, token: the HTTP API of the queue."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from qo.cli.invocation import (
    Session,
    command,
    default_to,
    new_app,
    new_group,
    refuse_memory,
    setting_option,
    start_logging,
)
from qo.cli.pipelines.dispatcher_client import require_extra
from qo.core.durations import format_instant, parse_duration_s

if TYPE_CHECKING:
    from qo.queue_api.token_file import StoredToken

_HELP = "Serve the queue over HTTP: submit, follow and manage tasks."

app = new_app()
serve = new_app(help=_HELP, cls=default_to("run"))


@serve.callback(help=f"{_HELP}\n\n`qo serve OPTIONS` is short for `qo serve run OPTIONS`; see its --help.")
def _accept_options() -> None:
    pass


app.add_typer(serve, name="serve")
token = new_group(serve, "token", "Create, list and revoke the tokens that qo serve accepts.")


class Role(StrEnum):
    VIEWER = "viewer"
    PRODUCER = "producer"
    OPERATOR = "operator"


@command(serve, "run")
def run(
    session: Session,
    listen: Annotated[str | None, setting_option("serve.listen")] = None,
    tokens: Annotated[str | None, setting_option("serve.tokens")] = None,
    rate_per_s: Annotated[str | None, setting_option("serve.rate_per_s")] = None,
) -> None:
    """Serve the HTTP API of the queue; `qo serve` is short for it.

    Prints where it listens. Runs until SIGTERM, SIGINT or SIGHUP: then requests that wait are answered at once, and all
    others are finished. It may be killed at any moment, and any number may serve one queue.
    """
    import asyncio

    settings = session.settings({"serve.listen": listen, "serve.tokens": tokens, "serve.rate_per_s": rate_per_s})
    refuse_memory(settings)
    start_logging(settings.log_level)
    with require_extra():
        from qo.queue_api.queue_server import run_server

        def print_url(url: str) -> None:
            if session.json:
                session.output.document({"url": url})
            else:
                session.output.record({"queue": url})
            sys.stdout.flush()  # The parent process may read this from a pipe.

        asyncio.run(run_server(settings, on_start=print_url))


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
            help="viewer: look at all tasks; producer: submit, and look at tasks by id; operator: everything "
            "[viewer].",
            show_default=False,
        ),
    ] = Role.VIEWER,
    expires_in: Annotated[
        str | None, typer.Option("--expires-in", metavar="DURATION", help="How long it is valid [until revoked].")
    ] = None,
) -> None:
    """Create a token, and print it.

    It is printed only this once: only its hash is stored, in the file that the setting serve.tokens names. Servers that
    use this file accept it at once.
    """
    from qo.config import kinds
    from qo.errors import UsageError
    from qo.queue_api import api_rights, token_file

    try:
        kinds.NAME.accept(name)
    except kinds.InvalidValue:
        raise UsageError(f"{name!r} cannot name the owner of a token: use {kinds.NAME.description}") from None
    lifetime_s = None if expires_in is None else parse_duration_s(expires_in, "--expires-in")
    if lifetime_s == 0:
        raise UsageError("--expires-in must be more than 0: the token would be of no use")
    now = session.ask(lambda queue: queue.store.now())
    entry, secret = token_file.create(
        token_file.path_of(session.settings()),
        name,
        api_rights.Role(str(role)),
        now=now,
        expires_at=None if lifetime_s is None else now + timedelta(seconds=lifetime_s),
    )
    if session.json:
        session.output.document({**_document(entry), "token": secret})
    else:
        session.output.line(secret)
        session.output.note(f"store it now, it is not shown again; its id is {entry.id}")


@command(token, "list")
def list_(session: Session) -> None:
    """List the tokens, without their secrets."""
    from qo.queue_api import token_file

    entries = token_file.load(token_file.path_of(session.settings()))
    if session.json:
        session.output.document([_document(each) for each in entries])
        return
    rows = [
        (each.id, each.name, each.role, format_instant(each.created_at), format_instant(each.expires_at))
        for each in entries
    ]
    session.output.table(("id", "name", "role", "created", "expires"), rows)


@command(token, "revoke")
def revoke(
    session: Session,
    token_id: Annotated[
        str, typer.Argument(metavar="ID", help="The token's id, as qo serve token list shows it.")
    ],
) -> None:
    """Revoke a token: it is refused from now on, by running servers, too."""
    from qo.queue_api import token_file

    entry = token_file.revoke(token_file.path_of(session.settings()), token_id)
    if session.json:
        session.output.document(_document(entry))
    else:
        session.output.line(f"revoked {entry.name} ({entry.id})")


def _document(entry: StoredToken) -> dict[str, str | datetime | None]:
    return {
        "id": entry.id,
        "name": entry.name,
        "role": str(entry.role),
        "created_at": entry.created_at,
        "expires_at": entry.expires_at,
    }
