"""Every question that the API answers about pipelines and data, asked of the application itself, without a network."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa

from bench.dispatcher.ground import pipeline
from bench.lab import TESTS
from qo.api.contract.token import CreateToken, Role
from qo.dispatcher.auth.principals import create_token
from qo.dispatcher.http.apps import public_app
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.pipeline.rendering import to_yaml

assert TESTS

PLAN = "qo plan"


class ApiCalls:
    """The public application of a dispatcher over a state whose datasets have so many partitions."""

    def __init__(self, state: State, directory: Path, keys: int) -> None:
        from support.dispatcher.listeners import context_of

        directory.mkdir(exist_ok=True)
        self._app = public_app(context_of(state, directory))
        self._runner = asyncio.Runner()
        with state.write() as tx:
            token = create_token(tx, CreateToken(name="bench", role=Role.ADMIN)).token
        self._headers = {"Host": "qo", "Authorization": f"Bearer {token}"}
        self.questions = _questions(state, keys)
        self._changed = to_yaml(pipeline(config="{v: planned}")).encode()

    def ask(self, name: str) -> float:
        """Return the seconds that an answer takes. Raises RuntimeError for one that is not as it should be."""
        if name == PLAN:
            return self.send("POST", "/v1/dags/shop/plan", self._changed)
        return self.send("GET", self.questions[name])

    def deploy(self, version: str) -> float:
        """Deploy a change of the job, which has everything rebuilt."""
        return self.send("POST", "/v1/dags/shop/versions", to_yaml(pipeline(config=f"{{v: {version}}}")).encode())

    def send(self, method: str, target: str, body: bytes = b"", kind: str = "application/yaml") -> float:
        from support.dispatcher.surfaces import call_app

        headers = {**self._headers, "Content-Type": kind}
        began_s = time.perf_counter()
        reply = self._runner.run(call_app(self._app, method, target, headers, body))
        took_s = time.perf_counter() - began_s
        if reply.status >= 300:
            raise RuntimeError(f"{method} {target}: {reply.status} {reply.text}")
        return took_s

    def close(self) -> None:
        self._runner.close()


def _questions(state: State, keys: int) -> Mapping[str, str]:
    """By name; about the middle of the history."""
    key = f"p{keys // 2}"
    tasks, commits = schema.tasks, schema.commits
    with state.read() as tx:
        task = tx.value(sa.select(tasks.c.id).where(tasks.c.job == "clean", tasks.c.partition_key == key))
        revision = tx.value(sa.select(commits.c.revision).where(commits.c.task_id == task))
    clean, orders = "/v1/datasets/shop.clean", "/v1/datasets/shop.orders"
    return {
        "why": f"/v1/why?target={quote(f'shop.clean@{key}')}",
        "why not": f"/v1/why?target={quote('shop.clean@missing')}",
        "why a task": f"/v1/why?target={task}",
        "pipelines": "/v1/dags",
        "pipeline": "/v1/dags/shop",
        "versions": "/v1/dags/shop/versions",
        "rebuild": "/v1/dags/shop/rebuild",
        "datasets": "/v1/datasets",
        "dataset": clean,
        "partitions": f"{clean}/partitions?after={key}",
        "stale partitions": f"{clean}/partitions?stale=true",
        "pieces": f"{clean}/pieces?limit=100",
        "events": f"{orders}/events?before={keys // 2}",
        "events of a partition": f"{orders}/events?partition_key={key}",
        "lineage": f"{clean}/lineage?partition_key={key}&depth=3",
        "commits": f"{clean}/commits?before={revision}",
        "changes": f"{clean}/changes?from_revision={revision}&to_revision={2 * keys}",
        "tasks": "/v1/tasks",
        "tasks of a pipeline": "/v1/tasks?dag=shop&status=completed",
        "tasks of a job": "/v1/tasks?dag=shop&job=clean",
        "failed tasks": "/v1/tasks?status=failed",
        "task": f"/v1/tasks/{task}",
        "checks": "/v1/checks",
        "rejections": "/v1/rejections",
        "sources": "/v1/sources",
        "held": "/v1/held",
        "queues": "/v1/queues",
        "runtimes": "/v1/runtimes",
        "backfills": "/v1/backfills",
        "metrics": "/metrics",
    }
