"""qo dag validate, deploy, diff, list, show, waiting, ready, activate, rollback, pause, resume, schema."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qo.cli.confirmation import confirm, is_interactive
from qo.cli.invocation import Session, command, new_app, new_group
from qo.cli.pipelines import dag_view
from qo.cli.pipelines.dag_waiting import waiting
from qo.cli.pipelines.dispatcher_client import ask, check_limit, pages, require_extra, route
from qo.cli.pipelines.formatting import format_timestamp
from qo.core.durations import parse_duration_s
from qo.core.pipeline.plan import outside_datasets
from qo.core.words import plural

if TYPE_CHECKING:
    from qo.core.pipeline.dag import Dag
    from qo.pipeline.loading import DeployableDefinition

VERSIONS_SHOWN = 20  # The newest ones, in the table for people; --json has all.

app = new_app()
dag = new_group(app, "dag", "Deploy pipelines, and choose which version is active.")

Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE|DIRECTORY|MODULE:PIPELINE",
        help="A YAML, JSON or Python file, a directory with a pipeline.yaml or pipeline.py or with nothing but queries "
        "(*.sql), or module:pipeline.",
    ),
]
Code = Annotated[
    bool,
    typer.Option(
        "--code/--no-code",
        help="Make the code of functions part of the version: workers run that code, and a change of it rebuilds data.",
        show_default=False,
    ),
]
Full = Annotated[
    bool,
    typer.Option("--full", help="Print the definition in full, with everything that was inferred or defaulted."),
]
Again = Annotated[bool, typer.Option("--again", help="Deploy it even if it was rolled back.")]
Name = Annotated[str, typer.Argument(metavar="DAG", help="The name of the DAG.")]
Version = Annotated[int, typer.Argument(metavar="VERSION", min=1, help="The number of the version.")]
Scope = Annotated[str, typer.Argument(metavar="DAG[.JOB]", help="A DAG, or one of its jobs.")]


@command(dag, "validate")
def validate(session: Session, target: Target, code: Code = False, full: Full = False) -> None:
    """Check a pipeline, without a dispatcher and without importing its code.

    For a file, also checks that the modules and functions of its jobs exist. With --code, also checks that the
    fingerprint of the code of each can be computed. With --full, prints the explicit form of the definition.
    """
    whole = load_whole(session, target, code=code, offline=True)
    pipeline = whole.dag
    with require_extra():
        from qo.pipeline.code import functions
        from qo.pipeline.target import resolve
    file = resolve(target).file
    if file is not None:
        functions.check(pipeline, file.read_text("utf-8-sig"), str(file))
    if full:
        _show_full(session, pipeline)
    elif session.json:
        session.output.document({"dag": pipeline.name, "jobs": [job.name for job in pipeline.jobs], "valid": True})
    else:
        session.output.line(f"{pipeline.name}: {plural(len(pipeline.jobs), 'job')}, nothing wrong")
        if outside := outside_datasets(pipeline):
            session.output.note(f"not checked here: whether other pipelines publish {', '.join(outside)}")


@command(dag, "deploy")
def deploy(
    session: Session,
    target: Target,
    activate: Annotated[
        bool, typer.Option("--activate", help="Wait until it is rebuilt, then activate it.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is rebuilt.")] = False,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="DURATION", help="Wait no longer than this.")
    ] = None,
    code: Code = True,
    again: Again = False,
) -> None:
    """Deploy a version of a pipeline.

    It is rebuilt beside the active version, which keeps serving until the new one is activated. Deploying the same
    file and code again changes nothing. A version that was rolled back is refused without --again; on a terminal
    you are asked instead.
    """
    timeout_s = None if timeout is None else parse_duration_s(timeout, "--timeout")
    whole = load_whole(session, target, code=code)
    with require_extra():
        from qo.cli.pipelines.deployment import Deployment
    work = Deployment(
        whole.dag.name,
        whole.source,
        whole.bundle,
        wait=wait or activate,
        activate=activate,
        timeout_s=timeout_s,
        again=again,
        confirm=confirm if is_interactive(session) else None,
    )
    answers = ask(session, lambda client: work.run(client, None if session.json else session.output.note))
    if session.json:
        session.output.document(answers)
    else:
        dag_view.show_deployed(session, answers)


@command(dag, "diff")
def diff(session: Session, target: Target, code: Code = True) -> None:
    """Compare a pipeline with its active version, and show what would be rebuilt."""
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
    dags, more = ask(session, lambda client: pages(client, "/v1/dags", "dags", limit))
    if session.json:
        session.output.document(dags)
        return
    dag_view.show_dags(session, dags)
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
    full: Full = False,
) -> None:
    """Show a DAG: its active version, its jobs, and its versions (the newest 20; with --json, all)."""
    path = route("dags", name, *(("versions", version) if version is not None else ()))

    most = sys.maxsize if session.json else VERSIONS_SHOWN

    async def fetch(client: Any) -> tuple[Any, list[Any], bool]:
        page, more = await pages(client, route("dags", name, "versions"), "versions", most)
        return await client.get(path), page, more

    answer, versions, more = ask(session, fetch)
    if source:
        session.output.line(answer["source"].rstrip("\n"))
    elif full:
        _show_full(session, _read_deployed(session, name, answer["source"]))
    elif session.json:
        session.output.document({**answer, "versions": versions})
    else:
        dag_view.show_version(session, answer, versions)
        if more:
            session.output.note(f"there are older versions than these {len(versions)}")


def _read_deployed(session: Session, name: str, source: str) -> Dag:
    with require_extra():
        from qo.cli.pipelines.runtime import find_registry
        from qo.pipeline.parsing import read
    return read(source, file=name, registry=find_registry(session))


def _show_full(session: Session, pipeline: Dag) -> None:
    """Print the explicit form: the document that editions are computed from."""
    from qo.core.pipeline.dag import to_json
    from qo.pipeline.rendering import to_yaml

    if session.json:
        session.output.document(json.loads(to_json(pipeline)))
    else:
        session.output.line(to_yaml(pipeline).rstrip("\n"))


command(dag, "waiting")(waiting)


@command(dag, "ready")
def ready(
    session: Session,
    name: Name,
    version: Version,
    force: Annotated[bool, typer.Option("--force", help="Accept a version with failed tasks.")] = False,
) -> None:
    """Mark a staged version as ready to be activated.

    Prints how much of it is built. A version with failed tasks is refused without --force.
    """
    path = route("dags", name, "versions", version, "ready")
    _show_transition(session, ask(session, lambda client: client.post(path, {"force": force})))


@command(dag, "activate")
def activate(
    session: Session,
    name: Name,
    version: Version,
    force: Annotated[
        bool, typer.Option("--force", help="Accept a version that is not ready, or that has failed tasks.")
    ] = False,
) -> None:
    """Activate a version: all its datasets switch at once.

    A version with failed tasks is refused without --force.
    """
    body = {"version": version, "force": force}
    _show_transition(session, ask(session, lambda client: client.put(route("dags", name, "active"), body)))


@command(dag, "rollback")
def rollback(session: Session, name: Name) -> None:
    """Go back to the version that was active before."""
    # Not repeatable: after a lost answer it could go back twice.
    _show_transition(
        session, ask(session, lambda client: client.post(route("dags", name, "rollback"), repeatable=False))
    )


def _show_transition(session: Session, answer: Mapping[str, Any]) -> None:
    if session.json:
        session.output.document(answer)
    else:
        dag_view.show_transition(session, answer)


@command(dag, "pause")
def pause(
    session: Session,
    scope: Scope,
    reason: Annotated[str, typer.Option("--reason", help="Why; shown wherever the pause has an effect.")] = "",
) -> None:
    """Pause a DAG or a job: no more tasks are released; running tasks go on."""
    _show_pause(
        session, ask(session, lambda client: client.post(route("dags", scope, "pause"), {"reason": reason}))
    )


@command(dag, "resume")
def resume(session: Session, scope: Scope) -> None:
    """Resume a DAG or a job."""
    _show_pause(session, ask(session, lambda client: client.post(route("dags", scope, "resume"))))


def _show_pause(session: Session, answer: Mapping[str, Any]) -> None:
    if session.json:
        session.output.document(answer)
        return
    state = "paused" if answer["paused"] else "not paused"
    since = f" since {format_timestamp(answer['at'])} by {answer['by']}" if answer["paused"] else ""
    session.output.line(f"{answer['scope']}  {state}{since}" + ("" if answer["changed"] else " (as before)"))


@command(dag, "schema")
def schema(session: Session) -> None:
    """Print the JSON Schema of pipeline files, for editors."""
    with require_extra():
        from qo.pipeline.jsonschema import schema as pipeline_schema
    session.output.document(pipeline_schema())


def load_whole(session: Session, target: str, *, code: bool, offline: bool = False) -> DeployableDefinition:
    """Load the pipeline with its code, as it would be deployed; prints the warnings.

    ``offline``: the runtimes are those of the settings here, and no dispatcher is asked for its own.
    """
    with require_extra():
        from qo.cli.pipelines.runtime import find_registry
        from qo.pipeline import loading
    registry = find_registry(session, offline=offline)
    whole = loading.load_for_deploy(target, code=code, registry=registry)
    for each in whole.warnings:
        session.output.note(each)
    return whole
