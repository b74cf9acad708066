"""qo policy: the IAM policies of roles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from qo.cli.invocation import Runtime, Session, command, new_app
from qo.core.roles import Role
from qo.errors import UsageError

if TYPE_CHECKING:
    from qo.config.dispatcher import DispatcherSettings
    from qo.config.settings import Settings
    from qo.core.pipeline.policy import Prefix

app = new_app()
_METAVAR = "|".join(Role)
Scoped = Annotated[
    bool,
    typer.Option(
        "--scoped",
        help="For a worker with --runtime: no rights to datasets, since attempts have credentials of their own.",
    ),
]


@command(app, "policy")
def policy(
    session: Session,
    role: Annotated[Role, typer.Argument(metavar=_METAVAR, help="The role.", show_default=False)],
    runtime: Runtime = None,
    create_only: Annotated[
        bool,
        typer.Option(
            "--create-only",
            help="For a producer: may create tasks, but not overwrite existing ones. Only AWS enforces it.",
        ),
    ] = False,
    push: Annotated[
        bool, typer.Option("--push", help="For a producer: may also read which workers there are, to wake them.")
    ] = False,
    direct: Annotated[
        bool,
        typer.Option(
            "--direct", help="For a producer or a dispatcher: may also put tasks into the inboxes of workers."
        ),
    ] = False,
    purge: Annotated[
        bool,
        typer.Option(
            "--purge", help="For a monitor or a worker: may also remove tasks that were kept long enough."
        ),
    ] = False,
    scoped: Scoped = False,
) -> None:
    """Print the IAM policy that a role needs.

    The policy is for the bucket and prefix of the settings; no server is accessed. With --runtime it is for a queue of
    that runtime of pipelines, and for a worker also for the data.
    """
    import json

    from qo.cli.pipelines.dispatcher_client import find_queue
    from qo.core.roles import Bucket, partition_of, role_policy

    settings = session.settings()
    location = settings.location.as_bucket()
    if location is None:
        raise UsageError(f"{settings.store} is not a bucket: policies are for s3://BUCKET[/PREFIX]")
    served = None if runtime is None else find_queue(settings, runtime)
    dispatcher, region = settings.dispatcher, settings.s3.region or ""
    document = role_policy(
        role,
        Bucket(location.bucket, location.prefix, partition_of(region)),
        runtime=None if served is None else served[0].works_like,
        queue=None if served is None else served[1],
        data=_data(settings, role),
        create_only=create_only,
        push=push,
        direct=direct,
        purge=purge,
        scoped=scoped,
        roles=_roles(dispatcher),
        functions=_functions(dispatcher.lambda_function, region),
    )
    session.output.line(json.dumps(document, indent=2))


def _roles(dispatcher: DispatcherSettings) -> list[str]:
    """Return the roles that a dispatcher assumes: for attempts, and for readers of tables."""
    roles = (dispatcher.role_arn, dispatcher.catalog_role_arn)
    return sorted({each for each in roles if each is not None and each != "off"})


def _data(settings: Settings, role: Role) -> Prefix | None:
    from qo.core.pipeline.policy import normalise

    root = settings.dispatcher.data
    if role is Role.TASK and not root.startswith("s3://"):
        raise UsageError("credentials of attempts are for data in a bucket: set QO_DATA to s3://BUCKET/PREFIX")
    return normalise(root) if root.startswith("s3://") else None


def _functions(name: str | None, region: str) -> list[str]:
    if name is None or name.startswith("arn:"):
        return [name] if name else []
    from qo.core.roles import partition_of

    return [f"arn:{partition_of(region)}:lambda:{region or '*'}:*:function:{name}"]
