"""qo source secret set, rotate, retire, remove, list: the secrets that senders of webhooks sign with."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from qo.cli.admin.key import open_secret_store
from qo.cli.invocation import Session, command, new_group
from qo.cli.pipelines.formatting import format_timestamp
from qo.cli.pipelines.source import app, source
from qo.core.words import plural

__all__ = ["app"]

secret = new_group(source, "secret", "Set, rotate and remove the secrets of webhooks.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the secret, as the source has it.")]
FromInput = Annotated[
    bool, typer.Option("--stdin", help="Read the secret from standard input, instead of generating one.")
]

HEADERS = ("name", "valid", "created", "changed", "encrypted with")


@command(secret, "set")
def set_(session: Session, name: Name, stdin: FromInput = False) -> None:
    """Make one secret the only one of a webhook.

    One that is generated is printed, and never shown again. Those that were there are refused within seconds; to change
    a secret without a pause, use rotate.
    """
    from qo.dispatcher.secrets.webhook_secrets import set_secret

    value = _read_input() if stdin else None
    with open_secret_store(session) as (secrets, _):
        stored = set_secret(secrets, name, value)
    _print_secret(session, name, None if stdin else stored)


@command(secret, "rotate")
def rotate(session: Session, name: Name, stdin: FromInput = False) -> None:
    """Add a second secret to a webhook: both are accepted until retire removes the older one.

    One that is generated is printed, and never shown again.
    """
    from qo.dispatcher.secrets.webhook_secrets import rotate_secret

    value = _read_input() if stdin else None
    with open_secret_store(session) as (secrets, _):
        stored = rotate_secret(secrets, name, value)
    _print_secret(session, name, None if stdin else stored)


@command(secret, "retire")
def retire(session: Session, name: Name) -> None:
    """Remove all secrets of a webhook but the newest, when its sender uses that one."""
    from qo.dispatcher.secrets.webhook_secrets import retire_secrets

    with open_secret_store(session) as (secrets, _):
        count = retire_secrets(secrets, name)
    if session.json:
        session.output.document({"name": name, "retired": count})
    else:
        session.output.line(f"retired {plural(count, 'secret')} of {name}")


@command(secret, "remove")
def remove(session: Session, name: Name) -> None:
    """Remove the secrets of a webhook: its messages are refused."""
    from qo.dispatcher.secrets.webhook_secrets import remove_secrets

    with open_secret_store(session) as (secrets, _):
        remove_secrets(secrets, name)
    if session.json:
        session.output.document({"name": name, "removed": True})
    else:
        session.output.line(f"removed {name}")


@command(secret, "list")
def list_(session: Session) -> None:
    """List the names of webhook secrets, and how many of each are valid; never the secrets themselves."""
    from qo.dispatcher.secrets.webhook_secrets import list_webhooks

    with open_secret_store(session) as (secrets, _):
        listings = list_webhooks(secrets)
    if session.json:
        session.output.document(
            [
                {
                    "name": each.name,
                    "valid": each.valid,
                    "created_at": each.created_at and each.created_at.isoformat(),
                    "changed_at": each.changed_at and each.changed_at.isoformat(),
                    "encrypted_with": each.sealed_with,
                }
                for each in listings
            ]
        )
        return
    rows = [
        (
            each.name,
            "unreadable" if each.valid is None else str(each.valid),
            format_timestamp(each.created_at and each.created_at.isoformat()),
            format_timestamp(each.changed_at and each.changed_at.isoformat()),
            each.sealed_with or "",
        )
        for each in listings
    ]
    session.output.table(HEADERS, rows)


def _read_input() -> bytes:
    return sys.stdin.read().encode("utf-8", "surrogateescape")


def _print_secret(session: Session, name: str, generated: bytes | None) -> None:
    if session.json:
        session.output.document({"name": name, "secret": None if generated is None else generated.decode()})
    elif generated is None:
        session.output.line(f"stored {name}")
    else:
        session.output.line(generated.decode())
        session.output.note("give it to the sender now: it is not shown again")
