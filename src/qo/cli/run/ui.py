"""qo ui serve, deploy, credentials: the dashboard, on this machine or in a bucket."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qo.cli.invocation import Session, command, default_to, new_app, refuse_memory, setting_option
from qo.cli.pipelines.dispatcher_client import log_quietly, open_context, require_extra
from qo.config import kinds
from qo.errors import ConfigError, QoError, UsageError

if TYPE_CHECKING:
    from qo.config.settings import Settings
    from qo.ui.dashboard import Dashboard
    from qo.ui.forwarding import Dispatcher, Upstream

_HELP = "Show queues and pipelines in a browser."


app = new_app()
ui = new_app(help=_HELP, cls=default_to("serve"))


@ui.callback(help=f"{_HELP}\n\n`qo ui OPTIONS` is short for `qo ui serve OPTIONS`; see its --help.")
def _accept_options() -> None:
    pass


app.add_typer(ui, name="ui")


@command(ui, "serve")
def serve(
    session: Session,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65_535, help="The port on the loopback address [8480, or any free one]."
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show everything, but allow no changes.")] = False,
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the link, but do not open a browser.")] = False,
    url: Annotated[str | None, setting_option("dispatcher.url")] = None,
) -> None:
    """Serve the dashboard on this machine; `qo ui` is short for it.

    Prints a link. Whoever has the link can do everything that the page can do until the command ends, so keep it
    secret. Runs until SIGTERM, SIGINT or SIGHUP.
    """
    settings = session.settings({"dispatcher.url": url})
    refuse_memory(settings)
    log_quietly(settings)
    tell = _link_printer(session, settings, opens=not no_open and not session.json and sys.stdout.isatty())
    asyncio.run(_serve(settings, port, read_only, tell))


async def _serve(settings: Settings, port: int | None, read_only: bool, tell: Any) -> None:
    from qo.ui.serving import serve
    from qo.worker.shutdown import stop_on_signals

    stop = asyncio.Event()
    stop_on_signals(stop)
    async with _connect_dispatcher(settings, "reader" if read_only else "writer") as dispatcher:
        await serve(settings, stop, on_start=tell, port=port, read_only=read_only, dispatcher=dispatcher)


@asynccontextmanager
async def _connect_dispatcher(settings: Settings, role: str) -> AsyncGenerator[Dispatcher | None]:
    """Connect to the dispatcher: over HTTP if ``dispatcher.url`` is set, otherwise to its state in this process.

    None if there is no state yet: then there are no pipelines to show. ``role`` is what the page may do.
    """
    from qo.ui.forwarding import Inside

    target = settings.dispatcher
    if target.url is not None:
        with require_extra():
            upstream = remote_dispatcher(settings, role)
        try:
            yield upstream
        finally:
            await upstream.close()
        return
    if not _has_state(settings) or find_spec("fastapi") is None:
        yield None
        return
    with require_extra():
        from qo.dispatcher.auth.local_tokens import page_token
        from qo.dispatcher.http.apps import public_app

        context = open_context(settings)
    try:
        assert context.tokens.admin is not None
        yield Inside(public_app(context), page_token(context.tokens.admin, role))
    finally:
        context.state.close()


def _has_state(settings: Settings) -> bool:
    scheme, _, path = settings.dispatcher.state.partition(":")
    return scheme != "sqlite" or Path(path).expanduser().is_file()


def remote_dispatcher(settings: Settings, role: str) -> Upstream:
    """Return the dispatcher at ``dispatcher.url``, with the rights of ``role``: never with an admin's token."""
    from qo.api.public_client import local_admin_token
    from qo.dispatcher.auth.local_tokens import page_token
    from qo.ui.forwarding import Upstream

    target = settings.dispatcher
    assert target.url is not None
    if target.token is not None:
        return Upstream(target.url, target.token, role=role)
    admin = local_admin_token(target)
    return Upstream(target.url, None if admin is None else page_token(admin, role))


def _link_printer(session: Session, settings: Settings, *, opens: bool) -> Any:
    def print_link(dashboard: Dashboard) -> None:
        if session.json:
            session.output.document({"url": dashboard.url, "link": dashboard.link})
        else:
            session.output.line(f"the dashboard of {settings.store} is at {dashboard.link}")
        sys.stdout.flush()  # The parent process may read this from a pipe.
        if opens:
            _open(dashboard.link)

    return print_link


def _open(link: str) -> None:
    """Open the link in a browser, through a file that only its owner can read.

    Every user of the machine can see the arguments of the browser's process, and the link is a secret.
    """
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
            "--dispatcher",
            metavar="URL",
            help="The URL at which browsers reach the dispatcher [none: queues only].",
        ),
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            "--origin", metavar="ORIGIN", help="Another origin under which the page is opened; repeat for more."
        ),
    ] = None,
    public: Annotated[
        bool,
        typer.Option("--public", help="Make the files of the page public. They hold no secrets."),
    ] = False,
) -> None:
    """Put the dashboard into the bucket, and print where it is.

    Uploads the page below ui/, and adds a CORS rule to the bucket. The page has no rights of its own: it asks for the
    text that `qo ui credentials` prints. Run it again after each upgrade of qo.
    """
    settings = session.settings()
    log_quietly(settings)
    dispatcher_url = (
        None if dispatcher is None else _validate(kinds.endpoint("QO_TOKEN"), dispatcher, "--dispatcher")
    )
    origins = [each for text in origin or [] for each in _validate(kinds.ORIGINS, [text.rstrip("/")], "--origin")]
    with require_s3_extra():
        from qo.ui.page_deploy import deploy

        deployed = asyncio.run(deploy(settings, dispatcher=dispatcher_url, origins=origins, public=public))
    if session.json:
        session.output.document(
            {"link": deployed.link, "done": list(deployed.steps), "lacking": list(deployed.todos)}
        )
        return
    for text in deployed.steps:
        session.output.line(text)
    session.output.line(f"the dashboard is at {deployed.link}")
    for text in deployed.todos:
        session.output.note(text)
    session.output.note("sign in with the text that `qo ui credentials` prints")


@command(ui, "credentials")
def credentials(
    session: Session,
    read_only: Annotated[bool, typer.Option("--read-only", help="Credentials to look only, not to act.")] = False,
    hours: Annotated[
        float, typer.Option("--hours", min=0.25, max=12, help="How long they are valid [1].", show_default=False)
    ] = 1.0,
    link: Annotated[bool, typer.Option("--link", help="Print a link to the page that contains them.")] = False,
) -> None:
    """Print short-lived credentials for a dashboard in the bucket.

    They come from STS and give access to the queue only; the keys of this command itself are never printed. Paste the
    text into the page. If dispatcher.url is set, and its token is an admin's, they contain a token for the dispatcher
    that expires with them.
    """
    from dataclasses import replace

    settings = session.settings()
    log_quietly(settings)
    with require_s3_extra():
        from qo.ui.minting import mint
        from qo.ui.page_deploy import place_of

        minted = mint(settings, read_only=read_only, hours=hours)
    token, why = _dispatcher_token(settings, read_only=read_only, hours=hours)
    minted = replace(minted, dispatcher_token=token)
    page = place_of(settings).page
    assert minted.expires_at is not None
    if session.json:
        ends = minted.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ")
        session.output.document(
            {"credentials": minted.text(), "expires_at": ends, "link": f"{page}#c={minted.text()}"}
        )
        return
    until = minted.expires_at.strftime("%Y-%m-%d %H:%M:%S UTC")
    session.output.line(f"{page}#c={minted.text()}" if link else minted.text())
    session.output.note(
        f"valid until {until}; whoever has it may {'look' if read_only else 'look and act'} until then"
    )
    if why:
        session.output.note(why)


def _dispatcher_token(settings: Settings, *, read_only: bool, hours: float) -> tuple[str | None, str]:
    """Return a token of the dispatcher that expires with the credentials, or why there is none."""
    if settings.dispatcher.url is None:
        return None, ""

    async def create_token() -> str:
        from qo.api.public_client import UserClient

        body = {"name": "dashboard", "role": "reader" if read_only else "writer", "ttl_s": hours * 3600}
        async with UserClient.from_settings(settings.dispatcher) as client:
            return (await client.post("/v1/tokens", body, repeatable=False))["token"]

    with require_extra():
        try:
            return asyncio.run(create_token()), ""
        except QoError as error:
            return None, f"they contain no token for the dispatcher, so the page shows queues only: {error}"


def _validate(kind: kinds.Kind, value: Any, option: str) -> Any:
    try:
        return kind.accept(value)
    except kinds.InvalidValue:
        raise UsageError(f"{option} takes {kind.description}, not {value!r}") from None


@contextmanager
def require_s3_extra() -> Generator[None]:
    """Turn the ImportError of a package for buckets into a ConfigError that says how to install it."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in {"aiohttp", "botocore", "yarl"}:
            raise
        raise ConfigError(
            f"this command needs {missing.name}: install qo with its extra, from a checkout, pip install '.[s3]'"
        ) from None
