"""qo init: begin a project."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from qo.cli.invocation import Session, command, new_app
from qo.cli.pipelines.dispatcher_client import require_extra
from qo.cli.run.projects.project import Project, write_project
from qo.cli.run.projects.queue_project import QUEUE_PROJECT
from qo.cli.run.projects.spark_project import SPARK_PROJECT
from qo.cli.run.projects.sql_project import SQL_PROJECT

app = new_app()


class Template(StrEnum):
    SPARK = "spark"
    SQL = "sql"
    QUEUE = "queue"


PROJECTS: dict[Template, Project] = {
    Template.SPARK: SPARK_PROJECT,
    Template.SQL: SQL_PROJECT,
    Template.QUEUE: QUEUE_PROJECT,
}


@command(app, "init")
def init(
    session: Session,
    directory: Annotated[
        Path, typer.Argument(metavar="[DIRECTORY]", help="Where; made if it is not there.", show_default=False)
    ] = Path(),
    template: Annotated[
        Template,
        typer.Option(
            "--template",
            help="spark: a pipeline in Python. sql: a pipeline of SQL files. queue: handlers of tasks.",
        ),
    ] = Template.SPARK,
) -> None:
    """Begin a project that runs, with data, a test and a README.

    Nothing that is there is overwritten: if one of the files exists, nothing is written.
    """
    project = PROJECTS[template]
    schema = ""
    if project.has_pipeline:
        with require_extra():
            from qo.pipeline.jsonschema import text
        schema = text()
    names = write_project(project, directory, schema)
    if session.json:
        session.output.document({"directory": str(directory), "template": template.value, "files": names})
        return
    session.output.line(f"{directory}: {project.summary}, in {len(names)} files")
    move = () if directory.resolve() == Path.cwd() else (f"cd {shlex.quote(str(directory))}",)
    for step in (*move, *project.next_steps):
        session.output.line(f"  {step}")
