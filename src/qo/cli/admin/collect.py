"""qo collect: delete files that nothing needs any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qo.cli.invocation import Session, command, new_app
from qo.cli.pipelines.dispatcher_client import ask, require_extra
from qo.cli.pipelines.formatting import format_bytes, format_count
from qo.core.durations import parse_duration_s

if TYPE_CHECKING:
    from qo.agent.collection import Candidate, Collected
    from qo.api.contract.garbage import PrefixVerdict
    from qo.api.public_client import UserClient

app = new_app()
KEEP = "7d"
KEEP_LOGS = "30d"


@command(app, "collect")
def collect(
    session: Session,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help=f"Keep files that ended or were replaced more recently than this [{KEEP}].",
            show_default=False,
        ),
    ] = KEEP,
    logs_older_than: Annotated[
        str,
        typer.Option(
            "--logs-older-than",
            metavar="DURATION",
            help=f"Keep logs of attempts that ended more recently than this [{KEEP_LOGS}].",
            show_default=False,
        ),
    ] = KEEP_LOGS,
    retired: Annotated[
        bool,
        typer.Option(
            "--retired", help="Also delete the data of versions that are neither active nor the last one active."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be deleted.")] = False,
) -> None:
    """Delete files of pipelines that nothing needs any more.

    These are files of failed attempts, files that were replaced long enough ago, old manifests and old logs. Files that
    are current, that a rollback needs or that a running task reads are never deleted. Run it where the data can be
    reached; if it is interrupted, run it again.
    """
    keep_s = parse_duration_s(older_than, "--older-than")
    log_keep_s = parse_duration_s(logs_older_than, "--logs-older-than")
    with require_extra():
        from qo.agent import collection
        from qo.api.contract.garbage import PrefixVerdict
        from qo.store.directory import open_directory
    settings = session.settings()

    async def work(client: UserClient) -> Collected:
        async def judge(prefixes: Sequence[str]) -> list[PrefixVerdict]:
            body: dict[str, Any] = {"prefixes": list(prefixes), "keep_s": keep_s, "log_keep_s": log_keep_s}
            answer = await client.post("/v1/collection", {**body, "retired": retired, "dry_run": dry_run})
            return [PrefixVerdict.model_validate(each) for each in answer["judged"]]

        def print_deleted(deleted: Candidate, why: str) -> None:
            if not session.json:
                session.output.line(f"{deleted.prefix}  {format_bytes(deleted.bytes)}  {why}")

        root = await open_directory(settings.dispatcher.data_root, settings)
        try:
            return await collection.collect(root, judge, dry_run=dry_run, on_deleted=print_deleted)
        finally:
            await root.close()

    collected = ask(session, work)
    _show(session, collected, dry_run)


def _show(session: Session, collected: Collected, dry_run: bool) -> None:
    if session.json:
        counts = {
            "prefixes": collected.prefixes,
            "logs": collected.logs,
            "files": collected.files,
            "bytes": collected.bytes,
            "kept": collected.kept_by_reason,
        }
        session.output.document({**counts, "dry_run": dry_run})
        return
    attempts, logs = format_count(collected.prefixes), format_count(collected.logs)
    files = format_count(collected.files)
    amount = f"{attempts} attempts, {logs} logs, {files} files, {format_bytes(collected.bytes)}"
    session.output.note(f"{amount} {'would be deleted' if dry_run else 'deleted'}")
    for why, count in sorted(collected.kept_by_reason.items()):
        session.output.note(f"kept {format_count(count)}: {why}")
