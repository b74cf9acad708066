"""Call the dispatcher: over HTTP if ``dispatcher.url`` is set, otherwise through its routes in this process.

A command uses the same client either way.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from qo.cli.invocation import Session, refuse_memory, start_logging
from qo.errors import ConfigError, NotFound, Unauthenticated, UsageError

if TYPE_CHECKING:
    from qo.api.public_client import UserClient
    from qo.config.settings import Settings
    from qo.dispatcher.http.app_context import Context
    from qo.dispatcher.state.database import State
    from qo.pipeline.registry import Runtime

T = TypeVar("T")

PAGE = 500

_EXTRA = frozenset(
    {"alembic", "cryptography", "fastapi", "httpx", "jwt", "pydantic", "sqlalchemy", "uvicorn", "yaml"}
)


@contextmanager
def require_extra() -> Generator[None]:
    """Turn the ImportError of an optional package into a ConfigError that says how to install it."""
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
    """Return the path of an API resource, with its parts quoted."""
    return "/v1/" + "/".join(quote(str(part), safe="") for part in parts)


def log_quietly(settings: Settings) -> None:
    """Log only warnings, unless a log level is set."""
    from qo.config.settings import DEFAULT, LogLevel

    quiet = settings.origin("log_level") == DEFAULT
    start_logging(LogLevel.WARNING if quiet else settings.log_level)


def runtime_queue(settings: Settings, place: str) -> Settings:
    """Return the settings of a runtime's queue. Raises as ``find_queue``."""
    import asyncio

    with require_extra():
        from qo.dispatcher.outbox.queues import prepare

        _, queue = find_queue(settings, place)
        refuse_memory(settings)
        return asyncio.run(prepare(settings, queue))


def find_queue(settings: Settings, place: str) -> tuple[Runtime, str]:
    """Return the runtime and the queue that ``NAME`` (its first queue) or ``NAME/QUEUE`` means.

    Raises NotFound for an unknown runtime or queue, UsageError for a runtime without workers.
    """
    from qo.pipeline.registry import configured_registry

    name, _, queue = place.partition("/")
    runtime = configured_registry(settings.runtimes).with_workers(name)
    if queue and queue not in runtime.queues:
        raise NotFound(f"the runtime {name} has no queue {queue!r}: it has {', '.join(runtime.queues)}")
    return runtime, queue or runtime.queues[0]


def ask(session: Session, question: Callable[[UserClient], Awaitable[T]]) -> T:
    """Call ``question`` with a client of the dispatcher that the settings name."""
    import asyncio

    settings = session.settings()
    log_quietly(settings)

    async def call() -> T:
        async with _open_client(settings) as client:
            return await question(client)

    with require_extra():
        try:
            return asyncio.run(call())
        except Unauthenticated as error:
            raise Unauthenticated(f"{error}; {_describe_token(settings)}") from error
        except NotFound as error:
            target = settings.dispatcher
            key = "dispatcher.state" if target.url is None else "dispatcher.url"
            raise NotFound(f"{error} ({without_password(settings.value(key))}, {settings.origin(key)})") from error


def _describe_token(settings: Settings) -> str:
    """Say which token the dispatcher has rejected, and what to set instead."""
    from pathlib import Path

    from qo.api.public_client import local_admin_token

    dispatcher = settings.dispatcher
    if dispatcher.token is not None:
        return f"the token is that of QO_TOKEN ({settings.origin('dispatcher.token')})"
    path = Path(dispatcher.secrets_dir, "admin.token").absolute()
    used = (
        f"the token is that of {path}"
        if local_admin_token(dispatcher)
        else f"there is no token in {path}, or none for it"
    )
    return f"{used}: set QO_TOKEN, or, on the dispatcher's machine, QO_SECRETS_DIR to its directory of secrets"


def without_password(url: str) -> str:
    return re.sub(r"(://[^:/@]*):.*@", r"\1:***@", url)


@asynccontextmanager
async def _open_client(settings: Settings) -> AsyncGenerator[UserClient]:
    from qo.api.public_client import UserClient

    dispatcher = settings.dispatcher
    if dispatcher.url is not None:
        async with UserClient.from_settings(dispatcher) as client:
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
    """Open the state database in this process, with an admin's rights: whoever can open it needs no token."""
    from pathlib import Path

    from qo.dispatcher.auth.local_tokens import LocalTokens
    from qo.dispatcher.auth.signing_keys import KeyRing
    from qo.dispatcher.http.app_context import Context
    from qo.dispatcher.secrets.file_secrets import FileSecrets
    from qo.dispatcher.state import topology
    from qo.dispatcher.state.database import open_state
    from qo.pipeline.registry import configured_registry
    from qo.store.secret_files import generate_secret

    registry = configured_registry(settings.runtimes)
    state = open_state(settings.dispatcher.state, durable=settings.dispatcher.state_durable)
    try:
        prepare(state)
        topology.use_registry(state, registry)
    except BaseException:
        state.close()
        raise
    return Context(
        state=state,
        settings=settings,
        keyring=KeyRing(
            FileSecrets(Path(settings.dispatcher.secrets_dir))
        ),  # No route for people signs or verifies.
        registry=registry,
        tokens=LocalTokens(
            (), generate_secret("qo_")
        ),  # A token that only this process knows, and only while it runs.
    )


def prepare(state: State) -> None:
    """Create the tables of a new SQLite file; otherwise check that the tables fit this version of qo."""
    from qo.dispatcher.state import upgrade

    status = upgrade.status(state)
    if status.current is None and state.engine.dialect.name == "sqlite":
        upgrade.upgrade(state)
    else:
        upgrade.require(state)


async def pages(
    client: UserClient, path: str, key: str, limit: int, cursor: str = "after", **params: Any
) -> tuple[list[Any], bool]:
    """Return up to ``limit`` items of a paged answer, and whether there are more.

    ``cursor`` is the name of the query parameter that says where the next page begins.
    """
    items: list[Any] = []
    next_page: Any = None
    while True:
        query = {**params, cursor: next_page, "limit": min(limit - len(items), PAGE)}
        page = await client.get(path, **query)
        items += page[key]
        next_page = page.get("next", page.get("after"))
        if next_page is None or len(items) >= limit:
            return items, next_page is not None


def check_limit(limit: int) -> int:
    if limit < 1:
        raise UsageError(f"--limit must be at least 1, not {limit}")
    return limit
