"""qo key generate: a key that encrypts payloads, or the secrets in the state database.
qo key list, rotate, revoke: the keys that sign the tokens of tasks. qo key import, rewrap: where they are kept.

All but the first open the store of secrets themselves: they need what a dispatcher has, the state database and the key
that encrypts secrets there, or the directory of secrets.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qo.cli.invocation import Session, command, new_app, new_group
from qo.cli.pipelines.dispatcher_client import log_quietly, open_context, require_extra
from qo.cli.pipelines.formatting import format_timestamp
from qo.core.sealed import KEY_BYTES, is_key_id
from qo.core.words import plural
from qo.errors import UsageError

if TYPE_CHECKING:
    from qo.config.settings import Settings
    from qo.dispatcher.auth.signing_keys import KeyListing, KeyRing
    from qo.dispatcher.secrets.database_secrets import DatabaseSecrets
    from qo.dispatcher.secrets.secret_store import SecretStore
    from qo.dispatcher.state.database import State

app = new_app()
key = new_group(app, "key", "Generate keys that encrypt; manage keys that sign.")

HEADERS = ("key", "algorithm", "now", "created", "signs from", "retires", "encrypted with")


@command(key, "generate")
def generate(
    session: Session,
    key_id: Annotated[
        str, typer.Argument(metavar="ID", help="The name of the key, stored with what it encrypts.")
    ],
) -> None:
    """Print a new key that encrypts the payloads of tasks, or the secrets in the state database.

    Store it where only producers and workers can read it: encryption.key_file, say; or only dispatchers:
    secrets.key_file. Whoever loses it cannot read what it has encrypted.
    """
    if not is_key_id(key_id):
        raise UsageError(f"{key_id!r} cannot name a key: use 1 to 64 letters, digits, '.', '_' and '-'")
    text = f"{key_id}:{base64.b64encode(os.urandom(KEY_BYTES)).decode()}"
    if session.json:
        session.output.document({"id": key_id, "key": text})
    else:
        session.output.line(text)


@command(key, "rotate")
def rotate(
    session: Session,
    urgent: Annotated[
        bool,
        typer.Option("--urgent", help="Let it sign after half a minute: other verifiers may refuse it first."),
    ] = False,
) -> None:
    """Create a new signing key, and delete those that no valid token needs any more.

    The new key is published at once, and signs five minutes later, when all verifiers have it. Tokens that were signed
    before are valid until they expire.
    """
    with _open_ring(session) as (ring, now):
        created, deleted = ring.rotate(now, urgent=urgent), ring.prune(now)
    if session.json:
        session.output.document({"made": created, "deleted": deleted})
    else:
        session.output.line(f"made {created}")
        for each in deleted:
            session.output.line(f"deleted {each}")


@command(key, "revoke")
def revoke(
    session: Session,
    kid: Annotated[str, typer.Argument(metavar="KEY", help="The key's id, as qo key list shows it.")],
) -> None:
    """Delete a signing key that has leaked: tokens that it signed are refused within seconds.

    Attempts that hold such a token are retried. If the key signs now, a new one takes its place.
    """
    with _open_ring(session) as (ring, now):
        successor = ring.revoke(kid, now)
    if session.json:
        session.output.document({"deleted": kid, "made": successor})
        return
    session.output.line(f"deleted {kid}")
    if successor is not None:
        session.output.line(f"made {successor}")


@command(key, "list")
def list_(session: Session) -> None:
    """List the signing keys: which one signs now, until when the others verify, and what encrypts them."""
    with _open_ring(session) as (ring, now):
        public = {each["kid"]: each for each in ring.jwks()["keys"]}
        documents = [_document(each, public[each.kid]) for each in ring.list_keys(now)]
    if session.json:
        session.output.document(documents)
        return
    rows = [
        (
            each["kid"],
            each["alg"],
            each["now"],
            format_timestamp(each["created_at"]),
            format_timestamp(each["signs_from"]) or "the first start",
            format_timestamp(each["retires_at"]),
            each["encrypted_with"] or "",
        )
        for each in documents
    ]
    session.output.table(HEADERS, rows)


@command(key, "import")
def import_(
    session: Session,
    directory: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIRECTORY", help="The directory of the files [dispatcher.secrets_dir]."),
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Delete each file once the database has returned its content.")
    ] = False,
) -> None:
    """Copy signing keys and webhook secrets from files into the state database.

    It may be interrupted and repeated. A secret that the database has under the same name with other content stays as
    it is there, and its file too.
    """
    from qo.dispatcher.secrets.chosen_store import import_files

    with _open_database(session) as (secrets, settings):
        imported = import_files(secrets, directory or Path(settings.dispatcher.secrets_dir), remove=remove)
    if session.json:
        session.output.document(
            {
                "imported": imported.created,
                "present": imported.present,
                "different": imported.different,
                "removed": remove,
            }
        )
        return
    for name in imported.created:
        session.output.line(f"imported {name}")
    for name in imported.present:
        session.output.line(f"present {name}")
    for name in imported.different:
        session.output.line(f"different {name}")
    if imported.different:
        session.output.note(
            f"the database has other content for {plural(len(imported.different), 'name')}, and keeps it: compare, "
            "and delete the files or the secrets"
        )


@command(key, "rewrap")
def rewrap(session: Session) -> None:
    """Encrypt the secrets in the state database again, with the first of the keys.

    Put a new key first only when all dispatchers have it; remove the old one after this.
    """
    with _open_database(session) as (secrets, _):
        names = secrets.rewrap()
    if session.json:
        session.output.document({"rewrapped": names})
    else:
        session.output.line(f"encrypted {plural(len(names), 'secret')} again")


def _document(listed: KeyListing, jwk: dict[str, Any]) -> dict[str, Any]:
    """Return the public key with its dates, which only its owner needs."""
    signs_from = datetime.fromtimestamp(listed.signs_from, UTC) if listed.signs_from else None
    return {
        **jwk,
        "name": listed.name,
        "now": listed.use,
        "signs_from": _text(signs_from),
        "created_at": _text(listed.created_at),
        "retires_at": _text(listed.retires_at),
        "encrypted_with": listed.sealed_with,
    }


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


@contextmanager
def open_installation(session: Session) -> Generator[tuple[Settings, State]]:
    """Open the state database, for commands that open the store of secrets themselves."""
    settings = session.settings()
    log_quietly(settings)
    with require_extra():
        context = open_context(settings)
    try:
        yield settings, context.state
    finally:
        context.state.close()


@contextmanager
def open_secret_store(session: Session) -> Generator[tuple[SecretStore, State]]:
    with open_installation(session) as (settings, state):
        from qo.dispatcher.secrets.chosen_store import open_secrets

        yield open_secrets(settings, state), state


@contextmanager
def _open_ring(session: Session) -> Generator[tuple[KeyRing, datetime]]:
    """Open the signing keys, and read the time that decides what each does."""
    with open_secret_store(session) as (secrets, state):
        from qo.dispatcher.auth.signing_keys import KeyRing

        ring = KeyRing.open(secrets)
        with state.read() as tx:
            now = tx.now
        yield ring, now


@contextmanager
def _open_database(session: Session) -> Generator[tuple[DatabaseSecrets, Settings]]:
    with open_installation(session) as (settings, state):
        from qo.dispatcher.secrets.chosen_store import open_database_secrets

        yield open_database_secrets(settings.secrets, state), settings
