"""The session of a command: its settings, its output, and the queue that it opens.

The options that every command has (--store, --config, --json, --log-level, --no-color) may stand before or after the
command's name. They are declared here once; ``command`` adds them to each command.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer
from typer.core import TyperGroup

from qo.cli.output import Output
from qo.errors import NotFound, UsageError

if TYPE_CHECKING:
    from qo.config.settings import LogLevel, Settings
    from qo.queue.queue import Queue

T = TypeVar("T")
Body = Callable[..., int | None]


Runtime = Annotated[
    str | None,
    typer.Option(
        "--runtime",
        metavar="NAME[/QUEUE]",
        help="Use the queue of this runtime of pipelines; its first, unless one is named.",
    ),
]


class OutputClosed(Exception):
    """The reader of standard output has closed it, as `head` does. That is no error, but the end of the command."""


class Session:
    """One run of one command."""

    def __init__(self, shared: Mapping[str, Any]) -> None:
        self._shared = shared
        self.json = bool(shared["json"])
        self.output = Output(color=not shared["no_color"])

    @property
    def config_path(self) -> Path | None:
        return self._shared["config"]

    @property
    def flags(self) -> dict[str, Any]:
        """The settings among the shared options, by their full names; None if not given."""
        return {"store": self._shared["store"], "log_level": self._shared["log_level"]}

    def settings(self, flags: Mapping[str, Any] | None = None) -> Settings:
        """Load the settings; ``flags`` are the command's own, by their full names."""
        from qo.config import origins

        return origins.load({**self.flags, **(flags or {})}, config_path=self.config_path)

    def ask(
        self,
        question: Callable[[Queue], Awaitable[T]],
        runtime: str | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> T:
        """Open the queue, call ``question`` with it, and close it. Logs only warnings, unless a log level is set.

        With ``runtime``, open the queue of that runtime of pipelines instead. ``flags`` are settings, by full name.
        """
        from qo.config.settings import DEFAULT, LogLevel

        settings = self.settings(flags)
        quiet = settings.origin("log_level") == DEFAULT
        if runtime is not None:
            from qo.cli.pipelines.dispatcher_client import runtime_queue

            settings = runtime_queue(settings, runtime)
        return self.run(settings, question, LogLevel.WARNING if quiet else settings.log_level)

    def run(
        self, settings: Settings, work: Callable[[Queue], Awaitable[T]], log_level: LogLevel | None = None
    ) -> T:
        """Open the queue that the settings name, call ``work`` with it, and close it."""
        import asyncio

        from qo import connect

        refuse_memory(settings)
        start_logging(log_level or settings.log_level)

        async def connect_and_work() -> T:
            async with connect(settings) as queue:
                return await work(queue)

        try:
            return asyncio.run(connect_and_work())
        except NotFound as error:
            # The usual cause is a wrong store: name it.
            raise NotFound(f"{error} (store {settings.store}, {settings.origin('store')})") from error


def refuse_memory(settings: Settings) -> None:
    if not settings.location.is_shared:
        raise UsageError(
            f"the store memory: ({settings.origin('store')}) lives inside one process, so a command would lose "
            "everything it writes; use local:PATH or s3://BUCKET"
        )


def start_logging(level: LogLevel) -> None:
    import logging

    from qo.telemetry.log_context import install_handler

    install_handler(level.upper())
    for chatty in ("aiohttp", "alembic", "asyncio", "botocore", "httpcore", "httpx", "urllib3"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def command(app: typer.Typer, name: str, *, settings: str | None = None) -> Callable[[Body], Body]:
    """Register ``body(session, ...)`` as a command with its own parameters and the shared options.

    ``settings`` names a group: each setting in it becomes an option, and ``body`` gets the given ones as ``flags``, by
    their full names.
    """
    options = {} if settings is None else _options_of(settings)

    def register(body: Body) -> Body:
        parameters = list(inspect.signature(body, eval_str=True).parameters.values())[1:]
        if options:
            parameters = [each for each in parameters if each.name != "flags"] + [
                each for _, each in options.values()
            ]

        def run(ctx: typer.Context, **arguments: Any) -> int | None:
            shared: dict[str, Any] = ctx.find_root().obj
            own_shared = {parameter.name: arguments.pop(parameter.name) for parameter in SHARED_HIDDEN}
            shared.update({key: value for key, value in own_shared.items() if value})
            if options:
                given_flags = {key: arguments.pop(name) for name, (key, _) in options.items()}
                arguments["flags"] = {key: _join_repeated(value) for key, value in given_flags.items()}
            try:
                return body(Session(shared), **arguments)
            except BrokenPipeError as error:
                raise OutputClosed from error  # Typer would turn it into an ordinary failure.

        context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
        run.__signature__ = inspect.Signature([context, *keyword_only, *SHARED_HIDDEN])  # type: ignore[attr-defined]
        run.__doc__ = body.__doc__
        app.command(name, epilog=_EPILOG)(run)
        return body

    return register


def _join_repeated(value: Any) -> Any:
    """Return the value of an option that may be given several times as one text; None: it was not given."""
    return (",".join(cast("list[str]", value)) or None) if isinstance(value, list) else value


def _options_of(group: str) -> dict[str, tuple[str, inspect.Parameter]]:
    """Return an option for each setting of a group: by the option's name, the setting's full name and the option."""
    from qo.config.settings import SETTINGS

    options: dict[str, tuple[str, inspect.Parameter]] = {}
    for row in SETTINGS:
        if row.key.startswith(f"{group}."):
            name = row.flag.removeprefix("--").replace("-", "_")
            kind: Any = (
                bool if isinstance(row.default, bool) else list[str] if row.kind.repeatable else str
            ) | None
            annotation = Annotated[kind, setting_option(row.key)]
            options[name] = (
                row.key,
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation),
            )
    return options


def setting_option(key: str) -> Any:
    """Declare an option for a setting; its name, help and default come from the table of settings."""
    from qo.config.settings import BY_KEY

    setting = BY_KEY[key]
    default = setting.default
    text = f"{default:g}" if isinstance(default, float) else str(default)
    suffix = "" if default in (None, ()) or isinstance(default, bool) else f" [{text}]"
    # What is on by default can be switched off.
    flag = f"{setting.flag}/--no-{setting.flag[2:]}" if default is True else setting.flag
    return typer.Option(
        flag, help=f"{setting.help.rstrip('.')}{suffix}.", show_default=False, metavar=_metavar(default)
    )


def _metavar(default: Any) -> str | None:
    if isinstance(default, bool):
        return None
    if isinstance(default, StrEnum):
        return "|".join(type(default))
    return "NUMBER" if isinstance(default, int | float) else "TEXT"


def new_app(**more: Any) -> typer.Typer:
    # Plain help: drawing it with Rich would take longer than everything else that `qo --help` does.
    return typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False, **more)


def new_group(app: typer.Typer, name: str, help: str) -> typer.Typer:
    """Add a command that has subcommands; without one, it prints its help."""
    group = new_app(help=help, invoke_without_command=True)

    def show_help(ctx: typer.Context) -> None:
        if ctx.invoked_subcommand is None:
            typer.echo(ctx.get_help())

    group.callback(help=help)(show_help)
    app.add_typer(group, name=name)
    return group


def default_to(command_name: str) -> type[TyperGroup]:
    """Return a class of groups that run this command where options stand in place of a subcommand."""

    class DefaultGroup(TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> Any:
            completing_name = not args and ctx.resilient_parsing
            if not completing_name and (not args or args[0].startswith("-")) and args[:1] != ["--help"]:
                args = [command_name, *args]
            return super().parse_args(ctx, args)

        def shell_complete(self, ctx: Any, incomplete: str) -> Any:
            items = super().shell_complete(ctx, incomplete)
            if incomplete.startswith("-"):
                items += self.commands[command_name].shell_complete(ctx, incomplete)
            return items

    return DefaultGroup


_EPILOG = "Options of every command: --store, --config, --log-level, --no-color (see qo --help)."


def _shared(*, hidden: bool) -> tuple[inspect.Parameter, ...]:
    def option(name: str, kind: Any, default: Any, help: str, metavar: str | None = None) -> inspect.Parameter:
        declaration = typer.Option(
            default,
            "--" + name.replace("_", "-"),
            help=help,
            hidden=hidden and name != "json",
            show_default=False,
            metavar=metavar,
        )
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=declaration, annotation=kind)

    return (
        option("store", str | None, None, "local:PATH, s3://BUCKET[/PREFIX] or memory:.", "STORE"),
        option("config", Path | None, None, "The settings file to read instead of qo.toml.", "PATH"),
        option("json", bool, False, "Print one JSON document on standard output."),
        option(
            "log_level", str | None, None, "debug, info, warning or error; logs go to standard error.", "LEVEL"
        ),
        option("no_color", bool, False, "Print without colours, as NO_COLOR does."),
    )


SHARED = _shared(hidden=False)
SHARED_HIDDEN = _shared(hidden=True)
