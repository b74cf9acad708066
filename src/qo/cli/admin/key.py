"""qo key list, rotate: the keys that sign the tokens of tasks. qo key generate: a key that encrypts payloads.

The keys that sign are files, so these commands run on the machine that has them.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qo.cli.invocation import Session, command, new_app, new_group
from qo.cli.pipelines.dispatcher_client import log_quietly, open_context, require_extra
from qo.cli.pipelines.formatting import format_timestamp
from qo.core.sealed import KEY_BYTES, is_key_id
from qo.errors import UsageError

if TYPE_CHECKING:
    from qo.dispatcher.auth.signing_keys import KeyListing
    from qo.dispatcher.http.app_context import Context

app = new_app()
key = new_group(app, "key", "Generate keys of payloads; list and rotate keys of tokens.")


@command(key, "generate")
def generate(
    session: Session,
    key_id: Annotated[
        str, typer.Argument(metavar="ID", help="The name of the key, stored with what it encrypts.")
    ],
) -> None:
    """Print a new key that encrypts the payloads of tasks.

    Store it where only producers and workers can read it: encryption.key_file, say. Whoever loses it cannot read what
    it has encrypted.
    """
    if not is_key_id(key_id):
        raise UsageError(f"{key_id!r} cannot name a key: use 1 to 64 letters, digits, '.', '_' and '-'")
    text = f"{key_id}:{base64.b64encode(os.urandom(KEY_BYTES)).decode()}"
    if session.json:
        session.output.document({"id": key_id, "key": text})
    else:
        session.output.line(text)


@command(key, "rotate")
def rotate(session: Session) -> None:
    """Create a new key, and delete those that no valid token needs any more.

    The new key is published at once, and signs a little later, when all readers have it.
    """
    with _open_context(session) as context, context.state.read() as tx:
        created, deleted = context.keyring.rotate(tx.now), context.keyring.prune(tx.now)
    if session.json:
        session.output.document({"made": created, "deleted": deleted})
    else:
        session.output.line(f"made {created}")
        for each in deleted:
            session.output.line(f"deleted {each}")


@command(key, "list")
def list_(session: Session) -> None:
    """List the published keys: their files, since when they sign, and which one signs now."""
    with _open_context(session) as context, context.state.read() as tx:
        documents = [_document(each, _jwk(context, each.kid)) for each in context.keyring.list_keys(tx.now)]
    if session.json:
        session.output.document(documents)
        return
    rows = [
        (each["kid"], each["file"], format_timestamp(each["signs_from"]) or "the first start", each["now"])
        for each in documents
    ]
    session.output.table(("key", "file", "signs from", "now"), rows)


def _jwk(context: Context, kid: str) -> dict[str, Any]:
    matches: list[dict[str, Any]] = [each for each in context.keyring.jwks()["keys"] if each["kid"] == kid]
    return matches[0] if matches else {}


def _document(listed: KeyListing, jwk: dict[str, Any]) -> dict[str, Any]:
    """Return the public key with its file and dates, which only its owner needs."""
    signs_from = datetime.fromtimestamp(listed.signs_from, UTC).isoformat() if listed.signs_from else None
    return {**jwk, "kid": listed.kid, "file": listed.file, "signs_from": signs_from, "now": listed.use}


@contextmanager
def _open_context(session: Session) -> Generator[Context]:
    settings = session.settings()
    log_quietly(settings)
    with require_extra():
        context = open_context(settings)
    try:
        yield context
    finally:
        context.state.close()
