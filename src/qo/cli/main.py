"""The command ``qo``: find the subcommand, run it, and turn every error into one line and an exit code.

A command's module is imported only when that command runs, so that `qo --help` need not wait for it.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from qo.cli.entry import EXIT_INTERRUPTED
from qo.cli.invocation import SHARED, OutputClosed, new_app
from qo.cli.output import shorten
from qo.errors import QoError

COMPLETE_VARIABLE = "_QO_COMPLETE"  # A shell's completion script sets it to ask for the possible next words.

EXIT_UNEXPECTED = 1
EXIT_PIPE_CLOSED = 141  # What a shell reports for a program that died of a closed pipe.

# The commands by group. Each has the module that holds it, and the first line of its help.
GROUPS = {
    "Pipelines": {
        "dag": ("pipelines.dag", "Deploy pipelines, and choose which version is active."),
        "plan": ("pipelines.planning", "Show what deploying a pipeline would rebuild."),
        "emit": ("pipelines.emit", "Announce new data of a source."),
        "run": ("pipelines.run", "List, show, cancel and replay tasks of pipelines; show logs."),
        "why": ("pipelines.why", "Explain why data is there, or why it is missing."),
        "dataset": ("pipelines.dataset", "Show the data that pipelines have made, and remove it."),
        "catalog": ("pipelines.catalog", "Show datasets as tables, and how other programs read them."),
        "quality": ("pipelines.quality", "Show the results of data checks, and rejected outputs."),
        "source": ("pipelines.source_secret", "List sources, their state and their last error."),
        "backfill": ("pipelines.backfill", "Rebuild partitions, a few at a time."),
        "invalidate": ("pipelines.invalidate", "Mark committed data as out of date, so that it is rebuilt."),
        "queue": ("pipelines.queue", "List the queues of pipelines, and how much waits in each."),
        "runtime": ("pipelines.runtime", "List the runtimes of pipelines, their queues and their limits."),
        "bundle": ("pipelines.bundle", "Build, run, push and list bundles: code of functions."),
        "scaling": ("pipelines.scaling", "Show how workers are scaled, and why."),
    },
    "Queue": {
        "submit": ("queue.submit", "Submit a task, or many from a file."),
        "status": ("queue.tasks", "Show a task, or pipelines, as they are now."),
        "history": ("queue.tasks", "Show every state that a task has been in."),
        "list": ("queue.tasks", "List tasks, newest first."),
        "stats": ("queue.depth", "Show how many tasks wait and run, by type, and for how long."),
        "shards": ("queue.shards", "Show which worker owns which shards, and since when."),
        "wait": ("queue.tasks", "Wait until a task has ended."),
        "replay": ("queue.task_actions", "Run failed, cancelled or expired tasks again."),
        "cancel": ("queue.task_actions", "Cancel pending tasks; ask running ones to stop."),
        "archive": ("queue.task_actions", "Archive ended tasks: they are kept, but not listed."),
        "unarchive": ("queue.task_actions", "Take tasks out of the archive."),
        "purge": ("queue.purge", "Remove ended tasks for good, with their history and data."),
        "group": ("queue.group", "Show the lines of groups, and skip the task that blocks one."),
        "limit": ("queue.limit", "Show the limits over all workers, and who has which share."),
        "schedule": ("queue.schedule", "Submit tasks by cron expression."),
        "pause": ("queue.control", "Stop workers from claiming tasks; running tasks go on."),
        "resume": ("queue.control", "Let workers claim tasks again."),
        "drain": ("queue.control", "Let a worker finish its running tasks and exit."),
    },
    "Run": {
        "init": ("run.init", "Begin a project that runs, with data, a test and a README."),
        "try": ("run.try_", "Run one job here, on committed inputs, without committing."),
        "shell": ("run.shell", "Open a Python prompt with Spark and the datasets."),
        "up": ("run.up", "Run pipelines on this machine, with everything they need."),
        "worker": ("run.worker", "Run a worker, or list the workers."),
        "serve": ("run.serve", "Serve the queue over HTTP: submit, follow and manage tasks."),
        "relay": ("run.relay", "Relay tasks from an application's database to the queue."),
        "dispatcher": ("run.dispatcher", "Run the dispatcher: route events, hand out tasks."),
        "scheduler": ("run.scheduler", "Run the scheduler: fire cron sources, watch for files."),
        "sink": ("run.sink", "Run the sink: let tables and files follow datasets."),
        "scaler": ("run.scaler", "Run the scaler: start and drain workers as their load says."),
        "monitor": ("run.monitor", "Run the monitor: requeue tasks of dead workers, repair indexes."),
        "ui": ("run.ui", "Show queues and pipelines in a browser."),
    },
    "Admin": {
        "doctor": ("admin.doctor", "Prove that a store can be trusted with a queue."),
        "conformance": ("admin.conformance", "Test a store with qo's conformance suite."),
        "config": ("admin.settings", "Show the settings, and where each comes from."),
        "db": ("admin.db", "Upgrade, measure and purge the state database."),
        "token": ("admin.token", "Create, list and revoke tokens for the dispatcher."),
        "key": ("admin.key", "Generate keys that encrypt; manage keys that sign."),
        "policy": ("admin.policy", "Print the IAM policy that a role needs."),
        "lifecycle": ("admin.lifecycle", "Print the lifecycle rules that a bucket should have."),
        "collect": ("admin.collect", "Delete files of pipelines that nothing needs any more."),
        "cost": ("admin.cost", "Estimate what a bucket would charge for requests."),
        "completion": ("admin.shell_completion", "Print the completion script of a shell."),
    },
}
COMMANDS = {name: entry for commands in GROUPS.values() for name, entry in commands.items()}


class Commands(TyperGroup):
    """The top-level group. It imports a command's module only when that command is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"qo.cli.{COMMANDS[cmd_name][0]}")
        return typer.main.get_group(module.app).commands[cmd_name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, COMMANDS))  # One for all groups, so that their columns line up.
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), help) for name, (_, help) in commands.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"there is no command {args[0]!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)


def _root() -> Any:
    app = new_app(cls=Commands, invoke_without_command=True)

    def qo(ctx: typer.Context, version: bool, **shared: Any) -> None:
        """Event-driven data pipelines on a bucket and Spark."""
        if version:
            from qo import __version__

            typer.echo(f"qo {__version__}")
            raise typer.Exit
        ctx.obj.update(shared)
        if ctx.invoked_subcommand is None:
            typer.echo(ctx.get_help())

    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    declared = typer.Option(False, "--version", help="Print the version.", show_default=False)
    version_parameter = inspect.Parameter(
        "version", inspect.Parameter.KEYWORD_ONLY, default=declared, annotation=bool
    )
    qo.__signature__ = inspect.Signature([context, version_parameter, *SHARED])  # type: ignore[attr-defined]
    app.callback()(qo)
    return typer.main.get_command(app)


def main(args: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (docs/reference/cli.md lists them)."""
    shared: dict[str, Any] = {}
    if os.environ.get(COMPLETE_VARIABLE):
        from typer.completion import get_completion_inspect_parameters

        get_completion_inspect_parameters()  # Called for its side effect: it registers the shells with Typer.
    try:
        code = _root().main(args, prog_name="qo", standalone_mode=False, obj=shared)
        sys.stdout.flush()
    except QoError as error:
        message = "\n".join((str(error), *getattr(error, "__notes__", ())))
        return _report(message, error.exit_code, shared)
    except typer.TyperException as error:
        return _report(error.format_message(), 2, shared)
    except (BrokenPipeError, OutputClosed):
        # Python flushes standard output again at exit, which would fail and print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if not _debugging(shared):
            text += "\nThis is a defect of qo or of its environment; --log-level debug shows where it happened."
        return _report(text, EXIT_UNEXPECTED, shared)
    return code if isinstance(code, int) else 0


def _report(message: str, code: int, shared: dict[str, Any]) -> int:
    if _debugging(shared):
        import traceback

        traceback.print_exc()
    sys.stderr.write(f"error: {shorten(message)}\n")
    return code


def _debugging(shared: dict[str, Any]) -> bool:
    return (shared.get("log_level") or os.environ.get("QO_LOG", "")).lower() == "debug"
