"""How commands ask a dispatcher: over HTTP where ``dispatcher.url`` names one, else its routes in this process.

One code path: the command sees the same client either way.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from qo.cli.session import Session, refuse_memory, start_logging
from qo.errors import ConfigError, NotFound, Unauthenticated, UsageError

if TYPE_CHECKING:
    from qo.api.public_client import UserClient
    from qo.config.settings import Settings
    from qo.dispatcher.http.context import Context
    from qo.dispatcher.state.database import State

T = TypeVar("T")

PAGE = 500

_EXTRA = frozenset(
    {"alembic", "cryptography", "fastapi", "httpx", "jwt", "pydantic", "sqlalchemy", "uvicorn", "yaml"}
)


@contextmanager
def extra() -> Generator[None]:
    """Around the first import of what only some installations have."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in _EXTRA:
            raise
        raise ConfigError(
            f"this command needs {missing.name}: install qo with its extra, from a checkout, "
            "pip install '.[dispatcher]'"
        ) from None


def route(*parts: str | int) -> str:
    """A path of the API, whatever the names in it are made of."""
    return "/v1/" + "/".join(quote(str(part), safe="") for part in parts)


def quietly(settings: Settings) -> None:
    """Log only what is worth a warning, unless asked for more."""
    from qo.config.settings import DEFAULT, LogLevel

    quiet = settings.origin("log_level") == DEFAULT
    start_logging(LogLevel.WARNING if quiet else settings.log_level)


def runtime_queue(settings: Settings, runtime: str) -> Settings:
    """The settings of a runtime's queue. Raises NotFound, or UsageError for a runtime without workers."""
    import asyncio

    with extra():
        from qo.dispatcher.outbox.queues import prepare
        from qo.pipeline.registry import DEFAULT, Launcher

        known = DEFAULT.get(runtime)
        if known.launcher is not Launcher.QUEUE:
            raise UsageError(f"runtime {runtime!r} has no workers: the dispatcher starts its tasks itself")
        refuse_memory(settings)
        return asyncio.run(prepare(settings, known.queue))


def ask(session: Session, question: Callable[[UserClient], Awaitable[T]]) -> T:
    """Put one question to the dispatcher that the settings name."""
    import asyncio

    settings = session.settings()
    quietly(settings)

    async def asked() -> T:
        async with _opened(settings) as client:
            return await question(client)

    with extra():
        try:
            return asyncio.run(asked())
        except Unauthenticated as error:
            raise Unauthenticated(f"{error}; {_shown(settings)}") from error
        except NotFound as error:
            chosen = settings.dispatcher
            key = "dispatcher.state" if chosen.url is None else "dispatcher.url"
            raise NotFound(f"{error} ({without_password(settings.value(key))}, {settings.origin(key)})") from error


def _shown(settings: Settings) -> str:
    """Which token a command has shown to a dispatcher that does not know it, and what to set."""
    from pathlib import Path

    from qo.api.public_client import own_token

    chosen = settings.dispatcher
    if chosen.token is not None:
        return f"the token is that of QO_TOKEN ({settings.origin('dispatcher.token')})"
    path = Path(chosen.secrets_dir, "admin.token").absolute()
    found = f"the token is that of {path}" if own_token(chosen) else f"there is no token in {path}, or none for it"
    return f"{found}: set QO_TOKEN, or, on the dispatcher's machine, QO_SECRETS_DIR to its directory of secrets"


def without_password(url: str) -> str:
    return re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url)


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncGenerator[UserClient]:
    from qo.api.public_client import UserClient

    chosen = settings.dispatcher
    if chosen.url is not None:
        async with UserClient.named(chosen) as client:
            yield client
        return
    from qo.dispatcher.http.embedded_client import open_embedded_client

    context = open_context(settings)
    try:
        async with open_embedded_client(context) as client:
            yield client
    finally:
        context.state.close()


def open_context(settings: Settings) -> Context:
    """The state database, opened here, with an admin's rights: whoever can open it needs no token."""
    from qo.dispatcher.auth.keys import KeyRing
    from qo.dispatcher.auth.local_tokens import LocalTokens
    from qo.dispatcher.http.context import Context
    from qo.dispatcher.state.database import open_state
    from qo.store.secret_files import draw

    state = open_state(settings.dispatcher.state, durable=settings.dispatcher.state_durable)
    try:
        prepare(state)
    except BaseException:
        state.close()
        raise
    return Context(
        state=state,
        settings=settings,
        keyring=KeyRing.open(settings.dispatcher.secrets_dir),
        tokens=LocalTokens((), draw("qo_")),  # Known to this process alone, and gone with it.
    )


def prepare(state: State) -> None:
    """Refuse tables that are not ours to use. A new SQLite file gets its tables: there was nothing to lose."""
    from qo.dispatcher.state import upgrade

    found = upgrade.status(state)
    if found.current is None and state.engine.dialect.name == "sqlite":
        upgrade.upgrade(state)
    else:
        upgrade.require(state)


async def pages(
    client: UserClient, path: str, key: str, limit: int, place: str = "after", **params: Any
) -> tuple[list[Any], bool]:
    """Up to ``limit`` items of a paged answer, and whether there are more. ``place``: how the next page is asked."""
    found: list[Any] = []
    following: Any = None
    while True:
        asked = {**params, place: following, "limit": min(limit - len(found), PAGE)}
        page = await client.get(path, **asked)
        found += page[key]
        following = page.get("next", page.get("after"))
        if following is None or len(found) >= limit:
            return found, following is not None


def check_limit(limit: int) -> int:
    if limit < 1:
        raise UsageError(f"--limit must be at least 1, not {limit}")
    return limit
