"""qo ui: the dashboard, here and in a bucket."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from qo.cli.pipelines.dispatcher import extra, open_context, quietly
from qo.cli.session import Session, command, new_app, refuse_memory, setting_option
from qo.config import kinds
from qo.errors import ConfigError, QoError, UsageError

if TYPE_CHECKING:
    from qo.config.settings import Settings
    from qo.ui.dashboard import Dashboard
    from qo.ui.forwarding import Dispatcher, Upstream

_HELP = "Show queues and pipelines in a browser."


class _Group(TyperGroup):
    """Options without a command are those of ``serve``."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["serve", *args]
        return super().parse_args(ctx, args)


app = new_app()
ui = new_app(help=_HELP, cls=_Group)


@ui.callback(help=f"{_HELP}\n\n`qo ui OPTIONS` is short for `qo ui serve OPTIONS`; see its --help.")
def _alone() -> None:
    pass


app.add_typer(ui, name="ui")


@command(ui, "serve")
def serve(
    session: Session,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65_535, help="Where to serve on loopback [8480, or any that is free]."),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show everything, change nothing.")] = False,
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the link only: open no browser.")] = False,
    url: Annotated[str | None, setting_option("dispatcher.url")] = None,
) -> None:
    """Serve the dashboard on this machine; `qo ui` says the same.

    Prints a link. Whoever has it can do in this queue what the page can do, until the command ends, so keep it to
    yourself. Runs until SIGTERM, SIGINT or SIGHUP.
    """
    settings = session.settings({"dispatcher.url": url})
    refuse_memory(settings)
    quietly(settings)
    tell = _teller(session, settings, opens=not no_open and not session.json and sys.stdout.isatty())
    asyncio.run(_serve(settings, port, read_only, tell))


async def _serve(settings: Settings, port: int | None, read_only: bool, tell: Any) -> None:
    from qo.ui.serving import serve
    from qo.worker.shutdown import stop_on_signals

    stop = asyncio.Event()
    stop_on_signals(stop)
    async with _dispatcher(settings, "reader" if read_only else "writer") as dispatcher:
        await serve(settings, stop, on_start=tell, port=port, read_only=read_only, dispatcher=dispatcher)


@asynccontextmanager
async def _dispatcher(settings: Settings, role: str) -> AsyncGenerator[Dispatcher | None]:
    """As for every command that asks one: over HTTP where the settings name it, else its state, opened here. Where
    there was never a pipeline there is no state, and nothing of it to be shown. ``role``: what the page may do."""
    from qo.ui.forwarding import Inside

    chosen = settings.dispatcher
    if chosen.url is not None:
        with extra():
            upstream = named_dispatcher(settings, role)
        try:
            yield upstream
        finally:
            await upstream.close()
        return
    if not _has_state(settings) or find_spec("fastapi") is None:
        yield None
        return
    with extra():
        from qo.dispatcher.auth.local_tokens import page_token
        from qo.dispatcher.http.app import public_app

        context = open_context(settings)
    try:
        assert context.tokens.admin is not None
        yield Inside(public_app(context), page_token(context.tokens.admin, role))
    finally:
        context.state.close()


def _has_state(settings: Settings) -> bool:
    scheme, _, path = settings.dispatcher.state.partition(":")
    return scheme != "sqlite" or Path(path).expanduser().is_file()


def named_dispatcher(settings: Settings, role: str) -> Upstream:
    """The dispatcher at ``dispatcher.url``, which the page asks as a ``role``: never with an admin's token."""
    from qo.api.public_client import own_token
    from qo.dispatcher.auth.local_tokens import page_token
    from qo.ui.forwarding import Upstream

    chosen = settings.dispatcher
    assert chosen.url is not None
    if chosen.token is not None:
        return Upstream(chosen.url, chosen.token, role=role)
    admin = own_token(chosen)
    return Upstream(chosen.url, None if admin is None else page_token(admin, role))


def _teller(session: Session, settings: Settings, *, opens: bool) -> Any:
    def tell(dashboard: Dashboard) -> None:
        if session.json:
            session.output.document({"url": dashboard.url, "link": dashboard.link})
        else:
            session.output.line(f"the dashboard of {settings.store} is at {dashboard.link}")
        sys.stdout.flush()  # Whoever started it may read this from a pipe.
        if opens:
            _open(dashboard.link)

    return tell


def _open(link: str) -> None:
    """By way of a file that only its owner can read: the arguments of a browser, anybody can."""
    import atexit
    import shutil
    import tempfile
    import webbrowser

    directory = Path(tempfile.mkdtemp(prefix="qo-ui-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    page = directory / "open.html"
    page.write_text(f'<!doctype html><meta charset="utf-8"><script>location.replace("{link}")</script>\n')
    webbrowser.open(page.as_uri())


@command(ui, "deploy")
def deploy(
    session: Session,
    dispatcher: Annotated[
        str | None,
        typer.Option(
            "--dispatcher", metavar="URL", help="Where browsers find the dispatcher [none: queues only]."
        ),
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            "--origin", metavar="ORIGIN", help="The page is also opened under this origin; repeat for more."
        ),
    ] = None,
    public: Annotated[
        bool,
        typer.Option("--public", help="Let everybody read the files of the page. They hold no secrets."),
    ] = False,
) -> None:
    """Put the dashboard into the bucket, and print where it is.

    Uploads the page below ui/, and adds a CORS rule to those of the bucket. The page asks for what `qo ui credentials`
    prints: it has no rights of its own. Run it again after each upgrade of qo.
    """
    settings = session.settings()
    quietly(settings)
    asked = None if dispatcher is None else _checked(kinds.endpoint("QO_TOKEN"), dispatcher, "--dispatcher")
    origins = [each for given in origin or [] for each in _checked(kinds.ORIGINS, [given.rstrip("/")], "--origin")]
    with s3_extra():
        from qo.ui.deploying import deploy

        done = asyncio.run(deploy(settings, dispatcher=asked, origins=origins, public=public))
    if session.json:
        session.output.document({"link": done.link, "done": list(done.done), "lacking": list(done.lacking)})
        return
    for text in done.done:
        session.output.line(text)
    session.output.line(f"the dashboard is at {done.link}")
    for text in done.lacking:
        session.output.note(text)
    session.output.note("let yourself in with what `qo ui credentials` prints")


@command(ui, "credentials")
def credentials(
    session: Session,
    read_only: Annotated[bool, typer.Option("--read-only", help="To look only, not to act.")] = False,
    hours: Annotated[
        float, typer.Option("--hours", min=0.25, max=12, help="Good for this long [1].", show_default=False)
    ] = 1.0,
    link: Annotated[bool, typer.Option("--link", help="Print a link to the page with them in it.")] = False,
) -> None:
    """Print short-lived credentials for a dashboard in the bucket.

    They come from STS and reach nothing but the queue; the keys that this command itself has are never printed. Paste
    the text into the page. If dispatcher.url is set, and its token is an admin's, they hold a token for the dispatcher
    that ends with them.
    """
    from dataclasses import replace

    settings = session.settings()
    quietly(settings)
    with s3_extra():
        from qo.ui.deploying import place_of
        from qo.ui.minting import mint

        made = mint(settings, read_only=read_only, hours=hours)
    token, why = _dispatcher_token(settings, read_only=read_only, hours=hours)
    made = replace(made, dispatcher_token=token)
    page = place_of(settings).page
    assert made.expires_at is not None
    if session.json:
        ends = made.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ")
        session.output.document(
            {"credentials": made.text(), "expires_at": ends, "link": f"{page}#c={made.text()}"}
        )
        return
    until = made.expires_at.strftime("%Y-%m-%d %H:%M:%S UTC")
    session.output.line(f"{page}#c={made.text()}" if link else made.text())
    session.output.note(
        f"good until {until}; whoever has it may {'look' if read_only else 'look and act'} until then"
    )
    if why:
        session.output.note(why)


def _dispatcher_token(settings: Settings, *, read_only: bool, hours: float) -> tuple[str | None, str]:
    """A token of the dispatcher that ends with the credentials, or why there is none."""
    if settings.dispatcher.url is None:
        return None, ""

    async def asked() -> str:
        from qo.api.public_client import UserClient

        body = {"name": "dashboard", "role": "reader" if read_only else "writer", "ttl_s": hours * 3600}
        async with UserClient.named(settings.dispatcher) as client:
            return (await client.post("/v1/tokens", body, repeatable=False))["token"]

    with extra():
        try:
            return asyncio.run(asked()), ""
        except QoError as error:
            return None, f"they hold no token for the dispatcher, so the page shows queues only: {error}"


def _checked(kind: kinds.Kind, given: Any, option: str) -> Any:
    try:
        return kind.accept(given)
    except kinds.Unfit:
        raise UsageError(f"{option} takes {kind.wanted}, not {given!r}") from None


@contextmanager
def s3_extra() -> Generator[None]:
    """Around the first import of what only an installation for buckets has."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in {"aiohttp", "botocore", "yarl"}:
            raise
        raise ConfigError(
            f"this command needs {missing.name}: install qo with its extra, from a checkout, pip install '.[s3]'"
        ) from None
