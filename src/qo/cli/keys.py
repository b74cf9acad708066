"""qo keys rotate, list: the keys that sign the tokens of tasks. They are files, so this works where they are."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from qo.cli.dispatching import extra, open_context, quietly
from qo.cli.session import Session, command, new_app, new_group

if TYPE_CHECKING:
    from qo.dispatcher.http.context import Context

app = new_app()
keys = new_group(app, "keys", "Look after the keys that sign the tokens of tasks.")


@command(keys, "rotate")
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


@command(keys, "list")
def list_(session: Session) -> None:
    """List the keys that are published."""
    with _opened(session) as context:
        found: list[dict[str, Any]] = context.keyring.jwks()["keys"]
    if session.json:
        session.output.document(found)
    else:
        session.output.table(("key", "algorithm"), [(each["kid"], each.get("alg", "")) for each in found])


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
