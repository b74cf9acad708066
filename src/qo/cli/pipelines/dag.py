"""qo dag validate, deploy, diff, list, show, ready, activate, rollback, pause, resume, schema."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qo.cli.confirmation import confirm, is_interactive
from qo.cli.durations import parse_duration_s
from qo.cli.pipelines import dag_view
from qo.cli.pipelines.dispatcher import ask, check_limit, extra, pages, route
from qo.cli.pipelines.formatting import shown_instant
from qo.cli.session import Session, command, new_app, new_group
from qo.core.words import plural

if TYPE_CHECKING:
    from qo.pipeline.loading import Whole

VERSIONS_SHOWN = 20  # The newest ones, in the table for people. A document for programs has all.

app = new_app()
dag = new_group(app, "dag", "Deploy pipelines, and choose which version is active.")

Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE|DIRECTORY|MODULE:PIPELINE",
        help="A YAML, JSON or Python file, a directory with a pipeline.yaml or pipeline.py, or module:pipeline.",
    ),
]
Code = Annotated[
    bool,
    typer.Option(
        "--code/--no-code",
        help="Let the code of functions be part of the version: it travels with it, and a change of it rebuilds them.",
        show_default=False,
    ),
]
Again = Annotated[bool, typer.Option("--again", help="Deploy it also if it was rolled back.")]
Name = Annotated[str, typer.Argument(metavar="DAG", help="The name of the DAG.")]
Version = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="The number of the version.")]
Scope = Annotated[str, typer.Argument(metavar="DAG[.JOB]", help="A DAG, or one of its jobs.")]


@command(dag, "validate")
def validate(session: Session, target: Target, code: Code = False) -> None:
    """Check a pipeline, without asking a dispatcher and without importing its code.

    Of a file, also that the modules and functions of its jobs are there. With --code, also that what the code of
    each is known by can be worked out.
    """
    whole = load_whole(session, target, code=code)
    found = whole.dag
    with extra():
        from qo.pipeline.code import functions
        from qo.pipeline.target import resolve
    file = resolve(target).file
    if file is not None:
        functions.check(found, file.read_text("utf-8-sig"), str(file))
    if session.json:
        session.output.document({"dag": found.name, "jobs": [job.name for job in found.jobs], "valid": True})
    else:
        session.output.line(f"{found.name}: {plural(len(found.jobs), 'job')}, nothing wrong")


@command(dag, "deploy")
def deploy(
    session: Session,
    target: Target,
    activate: Annotated[
        bool, typer.Option("--activate", help="When it is rebuilt, let it take over. Waits for that.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is rebuilt.")] = False,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="DURATION", help="Wait no longer than this.")
    ] = None,
    code: Code = True,
    again: Again = False,
) -> None:
    """Deploy a version of a pipeline.

    It is rebuilt beside the active version, which goes on serving until the new one is activated. Deploying the same
    file and code again changes nothing. A version that was rolled back is refused, unless with --again; on a terminal
    it is asked for.
    """
    timeout_s = None if timeout is None else parse_duration_s(timeout, "--timeout")
    whole = load_whole(session, target, code=code)
    with extra():
        from qo.cli.pipelines.deployment import Deploying
    work = Deploying(
        whole.dag.name,
        whole.source,
        whole.bundle,
        wait=wait or activate,
        activate=activate,
        timeout_s=timeout_s,
        again=again,
        confirm=confirm if is_interactive(session) else None,
    )
    done = ask(session, lambda client: work.run(client, None if session.json else session.output.note))
    if session.json:
        session.output.document(done)
    else:
        dag_view.show_deployed(session, done)


@command(dag, "diff")
def diff(session: Session, target: Target, code: Code = True) -> None:
    """Compare a pipeline with its active version: what would be rebuilt."""
    whole = load_whole(session, target, code=code)
    path = route("dags", whole.dag.name, "versions")
    answer = ask(session, lambda client: client.post(path, {"source": whole.source}, dry_run=True))
    if session.json:
        session.output.document(answer)
    else:
        dag_view.show_diff(session, answer)


@command(dag, "list")
def list_(
    session: Session,
    limit: Annotated[int, typer.Option("--limit", help="Show at most this many [100].", show_default=False)] = 100,
) -> None:
    """List the DAGs."""
    check_limit(limit)
    found, more = ask(session, lambda client: pages(client, "/v1/dags", "dags", limit))
    if session.json:
        session.output.document(found)
        return
    dag_view.show_dags(session, found)
    if more:
        session.output.note(f"stopped after {limit} DAGs; --limit shows more")


@command(dag, "show")
def show(
    session: Session,
    name: Name,
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="This version instead of the active one.")
    ] = None,
    source: Annotated[bool, typer.Option("--source", help="Print the file as it was deployed.")] = False,
) -> None:
    """Show a DAG: its version, its jobs, and its other versions: the newest 20, with --json all."""
    path = route("dags", name, *(("versions", version) if version is not None else ()))

    most = sys.maxsize if session.json else VERSIONS_SHOWN

    async def look(client: Any) -> tuple[Any, list[Any], bool]:
        found, more = await pages(client, route("dags", name, "versions"), "versions", most)
        return await client.get(path), found, more

    answer, versions, more = ask(session, look)
    if source:
        session.output.line(answer["source"].rstrip("\n"))
    elif session.json:
        session.output.document({**answer, "versions": versions})
    else:
        dag_view.show_version(session, answer, versions)
        if more:
            session.output.note(f"there are older versions than these {len(versions)}")


@command(dag, "ready")
def ready(
    session: Session,
    name: Name,
    version: Version,
    force: Annotated[bool, typer.Option("--force", help="Also a version of which tasks failed.")] = False,
) -> None:
    """Say that a staged version may take over.

    Says how much of it is built. A version of which tasks have failed is refused, unless with --force.
    """
    path = route("dags", name, "versions", version, "ready")
    _moved(session, ask(session, lambda client: client.post(path, {"force": force})))


@command(dag, "activate")
def activate(
    session: Session,
    name: Name,
    version: Version,
    force: Annotated[
        bool, typer.Option("--force", help="Also a version that is not ready, or of which tasks failed.")
    ] = False,
) -> None:
    """Let a version take over, all its datasets at once.

    A version of which tasks have failed is refused, unless with --force.
    """
    body = {"version": version, "force": force}
    _moved(session, ask(session, lambda client: client.put(route("dags", name, "active"), body)))


@command(dag, "rollback")
def rollback(session: Session, name: Name) -> None:
    """Go back to the version that was active before."""
    # Repeated after a lost answer, it could go back twice.
    _moved(session, ask(session, lambda client: client.post(route("dags", name, "rollback"), repeatable=False)))


def _moved(session: Session, answer: Mapping[str, Any]) -> None:
    if session.json:
        session.output.document(answer)
    else:
        dag_view.show_moved(session, answer)


@command(dag, "pause")
def pause(
    session: Session,
    scope: Scope,
    reason: Annotated[str, typer.Option("--reason", help="Why; shown wherever it has an effect.")] = "",
) -> None:
    """Release no more tasks of a DAG or a job; what runs goes on."""
    _paused(session, ask(session, lambda client: client.post(route("dags", scope, "pause"), {"reason": reason})))


@command(dag, "resume")
def resume(session: Session, scope: Scope) -> None:
    """Release tasks of a DAG or a job again."""
    _paused(session, ask(session, lambda client: client.post(route("dags", scope, "resume"))))


def _paused(session: Session, answer: Mapping[str, Any]) -> None:
    if session.json:
        session.output.document(answer)
        return
    state = "paused" if answer["paused"] else "not paused"
    since = f" since {shown_instant(answer['at'])} by {answer['by']}" if answer["paused"] else ""
    session.output.line(f"{answer['scope']}  {state}{since}" + ("" if answer["changed"] else " (as before)"))


@command(dag, "schema")
def schema(session: Session) -> None:
    """Print the JSON Schema of pipeline files, for editors."""
    with extra():
        from qo.pipeline.jsonschema import schema as made
    session.output.document(made())


def load_whole(session: Session, target: str, *, code: bool) -> Whole:
    """The pipeline as it is deployed; says of which jobs the code is not known."""
    with extra():
        from qo.pipeline import loading
    whole = loading.load_whole(target, code=code)
    for each in whole.warnings:
        session.output.note(each)
    return whole
