"""qo up: run pipelines on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from qo.cli.confirmation import confirm, is_interactive
from qo.cli.invocation import Session, command, new_app
from qo.cli.pipelines.dispatcher_client import require_extra

app = new_app()


@command(app, "up")
def up(
    session: Session,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE|DIRECTORY|MODULE:PIPELINE]...",
            help="Pipelines: YAML, JSON or Python files, directories with a pipeline.yaml or pipeline.py or with "
            "nothing but queries (*.sql), or module:pipeline [.].",
            show_default=False,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Exit when nothing is left to do.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Build the new version, but keep the active one serving.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Deploy a version even if it was rolled back.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch/--no-watch", help="Deploy again when files of the pipelines are saved.")
    ] = True,
) -> int:
    """Run pipelines on this machine, with everything they need.

    Starts a dispatcher, a dashboard, a scheduler and workers, with state, queues and data below .qo; deploys the
    pipelines, builds what has changed, and activates it. The same happens when their files are saved. Pipelines that
    somebody else deploys to it are run, too. Processes that die are started again; all end with this command. (Only
    the archive of Spark's classes, which is built once for each Java, may be finished later.) Runs until SIGINT,
    SIGTERM or SIGHUP, and a second signal kills what has not ended yet; with --once, until nothing is left to do for
    the given pipelines.
    Exits with 1 if tasks failed, with 130 if --once was interrupted. A version that was rolled back is refused without
    --again; on a terminal you are asked instead.
    """
    with require_extra():
        from qo.up.up import UpRequest, up
        from qo.up.view import SilentView, open_view

        ask_user = confirm if is_interactive(session) else None
        request = UpRequest(
            targets or ["."],
            session.flags,
            session.config_path,
            once=once,
            keep=keep,
            again=again,
            watch=watch,
            confirm=ask_user,
        )
        view = SilentView() if session.json else open_view(color=session.output.color)
        result = up(request, view)
    if session.json:
        session.output.document(result.document)
    return result.code
