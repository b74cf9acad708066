"""A pipeline with a job of the runtime ``lambda``, whose bundle holds the code of a test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from qo.api.contract.bundle import CreateBundle
from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import Settings
from qo.core.pipeline.states import EffectKind
from qo.dispatcher.auth.signing_keys import KeyRing
from qo.dispatcher.bundles import bundle_store
from qo.dispatcher.bundles.bundle_store import BundleStore
from qo.dispatcher.outbox import outbox
from qo.dispatcher.outbox.outbox import Effect
from qo.dispatcher.runtimes.invoker import Invoker
from qo.dispatcher.runtimes.local_functions import Functions, LocalFunctions
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks.creation import NewTask, create
from qo.function.sandbox import PlainProcess
from support.dispatcher.pipelines import dag, deployed, job, live, source
from support.dispatcher.zips import MAIN, bundle, sha256

WITHIN_S = 30.0


def eventually(holds: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WITHIN_S
    while not (found := holds()):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)
    return found


class Site:
    """A deployed job of the runtime lambda whose bundle holds the code, and who invokes it."""

    def __init__(self, state: State, tmp_path: Path, code: str, **fields: Any) -> None:
        self.state, self.data_root = state, f"file:{tmp_path / 'data'}"
        self.ring = KeyRing.open(tmp_path / "keys")
        self.shelf = BundleStore(Settings(dispatcher=DispatcherSettings(data=self.data_root)))
        self.body = bundle({MAIN: code})
        with state.write() as tx:
            wanted = CreateBundle(sha256=sha256(self.body), bytes=len(self.body))
            self.bundle_id = bundle_store.register(tx, wanted, "tests", self.shelf).bundle_id
        bundle_store.upload(state, self.shelf, self.bundle_id, self.body)
        bundle_store.finalize(state, self.shelf, self.bundle_id)
        udf = {"bundle_id": self.bundle_id, "entrypoint": MAIN}
        shop = dag(
            "shop",
            source("orders"),
            job("clean", **{"reads": "orders", "runtime": "lambda", "operator": "udf", "udf": udf, **fields}),
        )
        self.clean = live(deployed(state, shop), "shop.clean")
        self.invokers: list[Invoker] = []
        self.ended = threading.Event()  # An invocation: whoever waits for what it announced may look.

    def invoker(self, functions: Functions | None = None, parallel: int = 4) -> Invoker:
        made = Invoker(
            self.state,
            self.ring,
            functions or LocalFunctions(self.shelf, PlainProcess()),
            data_root=self.data_root,
            url="http://127.0.0.1:1",
            parallel=parallel,
            on_end=self.ended.set,
        )
        self.invokers.append(made)
        return made

    def wake(self, number: int = 1, queue: str = "lambda") -> str:
        with self.state.write() as tx:
            new = NewTask(job=self.clean, dedupe_key=f"manual:{number}", partition_key=f"p{number}")
            (made,) = create(tx, [new])
            outbox.add(tx, [Effect(f"wake-{number}", EffectKind.INVOKE, queue, made.task_id)])
            tx.execute(sa.update(schema.tasks).where(schema.tasks.c.id == made.task_id).values(released_at=tx.now))
        return made.task_id

    def task(self, task_id: str) -> sa.RowMapping:
        with self.state.read() as tx:
            row = tx.one(sa.select(schema.tasks).where(schema.tasks.c.id == task_id))
        assert row is not None
        return row

    def settled(self, task_id: str, *statuses: str) -> sa.RowMapping:
        return eventually(lambda: row if (row := self.task(task_id))["status"] in statuses else None)
