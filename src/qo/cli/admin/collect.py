"""qo collect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qo.cli.durations import parse_duration_s
from qo.cli.pipelines.dispatcher import ask, extra
from qo.cli.pipelines.formatting import shown_bytes, shown_count
from qo.cli.session import Session, command, new_app

if TYPE_CHECKING:
    from qo.agent.collection import Candidate, Collected
    from qo.api.contract.garbage import Judged
    from qo.api.public_client import UserClient

app = new_app()
KEEP = "7d"


@command(app, "collect")
def collect(
    session: Session,
    older_than: Annotated[
        str,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help=f"Keep what ended or was replaced later than that ago [{KEEP}].",
            show_default=False,
        ),
    ] = KEEP,
    retired: Annotated[
        bool,
        typer.Option("--retired", help="Also data that only versions have which neither serve nor served last."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
) -> None:
    """Delete files of pipelines that nothing needs any more.

    Those are what failed attempts left behind, what was replaced long enough ago, and old manifests. What is current,
    what a rollback goes to and what a running task reads is never deleted. Runs where the data can be reached; cut off,
    begin again.
    """
    keep_s = parse_duration_s(older_than, "--older-than")
    with extra():
        from qo.agent import collection
        from qo.api.contract.garbage import Judged
        from qo.store.directory import open_directory
    settings = session.settings()

    async def work(client: UserClient) -> Collected:
        async def judge(prefixes: Sequence[str]) -> list[Judged]:
            body: dict[str, Any] = {"prefixes": list(prefixes), "keep_s": keep_s}
            answer = await client.post("/v1/collection", {**body, "retired": retired, "dry_run": dry_run})
            return [Judged.model_validate(each) for each in answer["judged"]]

        def report(deleted: Candidate, why: str) -> None:
            if not session.json:
                session.output.line(f"{deleted.prefix}  {shown_bytes(deleted.bytes)}  {why}")

        root = await open_directory(settings.dispatcher.data_root, settings)
        try:
            return await collection.collect(root, judge, dry_run=dry_run, on_deleted=report)
        finally:
            await root.close()

    done = ask(session, work)
    if session.json:
        gone = {"prefixes": done.prefixes, "files": done.files, "bytes": done.bytes, "kept": done.kept}
        session.output.document({**gone, "dry_run": dry_run})
        return
    what = f"{shown_count(done.prefixes)} attempts, {shown_count(done.files)} files, {shown_bytes(done.bytes)}"
    session.output.note(f"{what} {'would be deleted' if dry_run else 'deleted'}")
    for why, count in sorted(done.kept.items()):
        session.output.note(f"kept {shown_count(count)}: {why}")
