"""qo bundle build, function, push, list, run."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qo.cli.invocation import Session, command, new_app, new_group
from qo.cli.pipelines.dispatcher_client import ask, check_limit, pages
from qo.errors import NotFound, TaskFailed, UsageError

if TYPE_CHECKING:
    from qo.function.sandbox import Sandbox

app = new_app()
bundle = new_group(app, "bundle", "Build, run, push and list bundles: code of functions.")

HEADERS = ("bundle", "name", "state", "runtime", "entrypoint", "files", "created")

File = Annotated[Path, typer.Argument(metavar="FILE", help="A bundle that qo bundle build has written.")]
Output = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the zip.")]


@command(bundle, "build")
def build(
    session: Session,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of the function's files.")],
    output: Output,
    name: Annotated[str | None, typer.Option(help="A name for people; unset: that of the directory.")] = None,
    entrypoint: Annotated[
        str | None, typer.Option(metavar="PATH", help="The file to run; unset: main.py, index.mjs or index.js.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Request this variable of the runtime; repeatable.")
    ] = None,
) -> None:
    """Build a bundle from the files of a directory.

    A bundle.toml in it may set name, entrypoint and env. The same files give the same bundle, byte for byte.
    """
    from qo.function.packing import build as build_bundle

    packed = build_bundle(directory, name=name, entrypoint=entrypoint, env=env or ())
    _write(output, packed.body)
    if session.json:
        session.output.document({"sha256": packed.sha256, "bytes": len(packed.body), "file": str(output)})
        return
    session.output.record(
        {"bundle": str(output), "sha256": packed.sha256, "entrypoint": packed.manifest.entrypoint or ""}
    )


@command(bundle, "function")
def function(session: Session, output: Output) -> None:
    """Package the AWS Lambda function that runs bundles.

    The zip holds the handler and the modules that it imports, from this environment. Some are compiled: create the
    function with the runtime and the architecture that are printed.
    """
    from qo.function.packing import build_lambda

    package = build_lambda()
    _write(output, package.body)
    about = {
        "file": str(output),
        "handler": package.handler,
        "runtime": package.runtime,
        "architecture": package.architecture,
        "bytes": len(package.body),
    }
    if session.json:
        session.output.document(about)
    else:
        session.output.record({key: str(value) for key, value in about.items()})


@command(bundle, "push")
def push(session: Session, file: File) -> None:
    """Upload a bundle to the dispatcher, and print its id, which jobs name under udf.

    Pushing the same bundle again changes nothing.
    """
    from qo.api.delivery import upload_bundle
    from qo.function.archive import inspect

    body = _read(file)
    sha256 = hashlib.sha256(body).hexdigest()
    if inspect(body, sha256).runtime == "pipeline":
        raise UsageError(f"{file} is the code of a pipeline, which qo dag deploy uploads by itself")
    answer = ask(session, lambda client: upload_bundle(client, sha256, body))
    if session.json:
        session.output.document(answer)
    else:
        session.output.line(answer["bundle_id"])


@command(bundle, "list")
def list_(
    session: Session, limit: Annotated[int, typer.Option(metavar="N", help="How many at most.")] = 100
) -> None:
    """List the bundles of functions, newest first."""
    check_limit(limit)
    bundles, more = ask(session, lambda client: pages(client, "/v1/bundles", "bundles", limit))
    if session.json:
        session.output.document(bundles)
        return
    rows = [
        (
            each["bundle_id"],
            each["name"] or "-",
            each["state"],
            each["runtime"] or "-",
            each["entrypoint"] or "-",
            "-" if each["files"] is None else str(each["files"]),
            each["created_at"],
        )
        for each in bundles
    ]
    session.output.table(HEADERS, rows)
    if more:
        session.output.note(f"there are more: --limit is {limit}")


@command(bundle, "run")
def run(
    session: Session,
    file: File,
    input: Annotated[
        str, typer.Option(metavar="JSON|@FILE", help="Fields of the work, such as config or partition_key.")
    ] = "{}",
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Give it one output, whose files are written here.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Offer it this variable; repeatable.")
    ] = None,
    network: Annotated[bool, typer.Option("--network", help="Let it reach the network.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long it may take.")] = 60.0,
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Run it without a sandbox, with all your rights.")
    ] = False,
) -> None:
    """Run a bundle on this machine, as a dispatcher would, with a made-up invocation, and print its reply.

    It runs in a sandbox; where the machine offers none, it is refused (exit code 4) unless --unsafe is given. If
    the function fails, the exit code is 8.
    """
    import os

    from qo.function.rehearsal import rehearse

    missing = [each for each in env or () if each not in os.environ]
    if missing:
        raise UsageError(f"--env {missing[0]}: there is no such variable here")
    verdict = rehearse(
        _read(file),
        _parse_work(input),
        sandbox=_choose_sandbox(unsafe),
        output=output,
        offered={each: os.environ[each] for each in env or ()},
        network=network,
        timeout_s=timeout,
    )
    if verdict.reply is None:
        raise TaskFailed(verdict.error or str(verdict.outcome))
    import msgspec

    session.output.document(msgspec.to_builtins(verdict.reply))
    if verdict.outcome != "success":
        raise TaskFailed(f"{verdict.outcome}: {verdict.error or 'the function says no more'}")


def _choose_sandbox(unsafe: bool) -> Sandbox:
    from qo.errors import Refused
    from qo.function.sandbox import PlainProcess, find_sandbox

    if unsafe:
        return PlainProcess()
    try:
        return find_sandbox()
    except Refused as error:
        raise Refused(
            f"{error}: install bubblewrap or allow user namespaces; --unsafe runs it with all your rights"
        ) from None


def _parse_work(text: str) -> dict[str, Any]:
    source = _read(Path(text[1:])) if text.startswith("@") else text
    try:
        work = json.loads(source)
    except ValueError as error:
        raise UsageError(f"--input is not JSON: {error}") from None
    if not isinstance(work, dict):
        raise UsageError("--input must be a JSON object with fields of the work, such as config or partition_key")
    return work  # pyright: ignore[reportUnknownVariableType] - JSON


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def _write(path: Path, body: bytes) -> None:
    try:
        path.write_bytes(body)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
