"""qo up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qo.cli.confirming import confirm, is_interactive
from qo.cli.dispatching import extra
from qo.cli.session import Session, command, new_app

app = new_app()


@command(app, "up")
def up(
    session: Session,
    target: Annotated[
        Path, typer.Argument(metavar="FILE|DIRECTORY", help="A pipeline, or a directory with a pipeline.yaml.")
    ] = Path(),
    once: Annotated[bool, typer.Option("--once", help="End when nothing is left to do.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep serving the active version: build the new one and stop there.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Deploy it also if it was rolled back.")] = False,
) -> int:
    """Run a pipeline with everything that it needs, on this machine.

    Starts a dispatcher, a dashboard, a scheduler and workers, with state, queues and data below .qo; deploys the
    pipeline, builds what has changed, and lets it take over. What dies is started again; all of it ends with this
    command. (Only an archive of Spark's classes, which is made once for each Java, may be finished after it.) Runs
    until SIGINT, SIGTERM or SIGHUP, and a second one kills what has not ended yet; with --once, until all is done.
    Ends with 1 if tasks failed, with 130 if it was to run once and was interrupted. A version that was rolled back is
    refused, unless with --again; on a terminal it is asked for.
    """
    with extra():
        from qo.site.up import Wanted, up
        from qo.site.view import SilentView, open_view

        asked = confirm if is_interactive(session) else None
        wanted = Wanted(
            target, session.flags, session.config_path, once=once, keep=keep, again=again, confirm=asked
        )
        view = SilentView() if session.json else open_view(color=session.output.color)
        done = up(wanted, view)
    if session.json:
        session.output.document(done.document)
    return done.code
