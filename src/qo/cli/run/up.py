"""qo up."""

from __future__ import annotations

from typing import Annotated

import typer

from qo.cli.confirmation import confirm, is_interactive
from qo.cli.pipelines.dispatcher import extra
from qo.cli.session import Session, command, new_app

app = new_app()


@command(app, "up")
def up(
    session: Session,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE|DIRECTORY|MODULE:PIPELINE]...",
            help="Pipelines: YAML, JSON or Python files, directories with a pipeline.yaml or pipeline.py, or "
            "module:pipeline [.].",
            show_default=False,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when nothing is left to do.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep serving the active version: build the new one and stop there.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Deploy it also if it was rolled back.")] = False,
) -> int:
    """Run pipelines on this machine, with everything they need.

    Starts a dispatcher, a dashboard, a scheduler and workers, with state, queues and data below .qo; deploys the
    pipelines, builds what has changed, and lets it take over. Pipelines that somebody else deploys to it are run, too.
    What dies is started again; all of it ends with this command. (Only an archive of Spark's classes, which is made
    once for each Java, may be finished after it.) Runs until SIGINT, SIGTERM or SIGHUP, and a second one kills what
    has not ended yet; with --once, until nothing is left to do for the pipelines that it was given.
    Ends with 1 if tasks failed, with 130 if it was to run once and was interrupted. A version that was rolled back is
    refused, unless with --again; on a terminal it is asked for.
    """
    with extra():
        from qo.up.up import Wanted, up
        from qo.up.view import SilentView, open_view

        asked = confirm if is_interactive(session) else None
        wanted = Wanted(
            targets or ["."],
            session.flags,
            session.config_path,
            once=once,
            keep=keep,
            again=again,
            confirm=asked,
        )
        view = SilentView() if session.json else open_view(color=session.output.color)
        done = up(wanted, view)
    if session.json:
        session.output.document(done.document)
    return done.code
