"""Handlers of tasks: the queue alone, without pipelines and without Spark."""

from __future__ import annotations

from qo.cli.run.projects.project import Project

TASKS = '''\
"""The handlers of {project}: `qo worker --app tasks:app` runs them."""

import qo

app = qo.App()


@app.task("greet")
async def greet(input):
    return f"hello {input['name']}"


@app.task("resize", timeout_s=60)  # A plain function runs on a thread.
def resize(input, ctx):
    if input["width"] <= 0:
        raise qo.Reject("the width must be positive")  # Never tried again; any other exception is.
    return {"width": input["width"], "attempt": ctx.attempt}
'''

TEST = '''\
"""Handlers are tested with a queue in memory, which runs in virtual time: see qo.testing."""

import qo
from tasks import app


def test_a_greeting_names_whom_it_greets(qo_queue, qo_run):
    task = qo_run(qo_queue.submit("greet", {"name": "Ada"}))
    qo_run(qo_queue.drain(app))
    assert qo_run(qo_queue.output(qo_run(qo_queue.get(task.id)))) == "hello Ada"


def test_a_width_that_cannot_be_is_not_tried_again(qo_queue, qo_run):
    task = qo_run(qo_queue.submit("resize", {"width": 0}))
    qo_run(qo_queue.drain(app, may_fail=True))
    ended = qo_run(qo_queue.get(task.id))
    assert (ended.status, ended.attempt) == (qo.Status.FAILED, 1)
'''

README = """\
# {project}

Tasks of qo. `tasks.py` has the handlers. The queue is a file below `.qo/` to begin with;
`--store s3://BUCKET/PREFIX` or the variable `QO_STORE` names a bucket.

    python -m pytest                                    # test the handlers
    qo submit --type greet --input '{"name": "Ada"}'    # submit a task
    qo worker --app tasks:app                           # run tasks; Ctrl-C ends it
    qo worker --app tasks:app --drain                   # run tasks until none is left
    qo list
"""

QUEUE_PROJECT = Project(
    summary="handlers of tasks: the queue alone",
    files={"tasks.py": TASKS, "test_tasks.py": TEST, "README.md": README},
    next_steps=(
        "python -m pytest",
        """qo submit --type greet --input '{"name": "Ada"}'""",
        "qo worker --app tasks:app --drain",
    ),
    has_pipeline=False,
)
