"""qo key list, rotate: the keys that sign the tokens of tasks.

The keys are files, so these commands run on the machine that has them.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from qo.cli.pipelines.dispatcher import extra, open_context, quietly
from qo.cli.pipelines.formatting import shown_instant
from qo.cli.session import Session, command, new_app, new_group

if TYPE_CHECKING:
    from qo.dispatcher.auth.keys import Listed
    from qo.dispatcher.http.context import Context

app = new_app()
key = new_group(app, "key", "List and rotate the keys that sign the tokens of tasks.")


@command(key, "rotate")
def rotate(session: Session) -> None:
    """Make a new key, and delete those that no valid token needs any more.

    The new one is published at once and signs a little later, when everybody knows it.
    """
    with _opened(session) as context, context.state.read() as tx:
        made, gone = context.keyring.rotate(tx.now), context.keyring.prune(tx.now)
    if session.json:
        session.output.document({"made": made, "deleted": gone})
    else:
        session.output.line(f"made {made}")
        for each in gone:
            session.output.line(f"deleted {each}")


@command(key, "list")
def list_(session: Session) -> None:
    """List the keys that are published: their files, from when on they sign, and which one signs now."""
    with _opened(session) as context, context.state.read() as tx:
        found = [_shown(each, _jwk(context, each.kid)) for each in context.keyring.listed(tx.now)]
    if session.json:
        session.output.document(found)
        return
    rows = [
        (each["kid"], each["file"], shown_instant(each["signs_from"]) or "the first start", each["now"])
        for each in found
    ]
    session.output.table(("key", "file", "signs from", "now"), rows)


def _jwk(context: Context, kid: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = [each for each in context.keyring.jwks()["keys"] if each["kid"] == kid]
    return found[0] if found else {}


def _shown(listed: Listed, jwk: dict[str, Any]) -> dict[str, Any]:
    """The public key, and beside it what concerns only who keeps it."""
    begun = datetime.fromtimestamp(listed.signs_from, UTC).isoformat() if listed.signs_from else None
    return {**jwk, "kid": listed.kid, "file": listed.file, "signs_from": begun, "now": listed.use}


@contextmanager
def _opened(session: Session) -> Generator[Context]:
    settings = session.settings()
    quietly(settings)
    with extra():
        context = open_context(settings)
    try:
        yield context
    finally:
        context.state.close()
