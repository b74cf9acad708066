"""qo lifecycle: the lifecycle rules of a bucket."""

from __future__ import annotations

from typing import Annotated

import typer

from qo.cli.invocation import Runtime, Session, command, new_app
from qo.errors import UsageError

app = new_app()


@command(app, "lifecycle")
def lifecycle(
    session: Session,
    runtime: Runtime = None,
    no_versioning: Annotated[
        bool, typer.Option("--no-versioning", help="For a bucket without versioning: only the rule for uploads.")
    ] = False,
) -> None:
    """Print the lifecycle rules that a bucket should have.

    They remove old versions of hints after a day, and uploads that nobody finishes after a week; they never remove a
    task. The JSON is what `aws s3api put-bucket-lifecycle-configuration` takes, which replaces all rules of the bucket:
    add those that you have. `qo doctor --fix` sets the same rules and keeps the others. No server is accessed.
    """
    import json

    from qo.cli.pipelines.dispatcher_client import find_queue
    from qo.core.lifecycle_rules import queue_rules
    from qo.core.roles import Bucket

    settings = session.settings()
    location = settings.location.as_bucket()
    if location is None:
        raise UsageError(f"{settings.store} is not a bucket: lifecycle rules are for s3://BUCKET[/PREFIX]")
    place = Bucket(location.bucket, location.prefix)
    at = place if runtime is None else place.below(find_queue(settings, runtime)[1])
    rules = queue_rules(at.prefix, versioning=not no_versioning)
    session.output.line(json.dumps({"Rules": rules}, indent=2))
