"""Versions of one small pipeline whose code lies in a directory, deployed into a site as a user would.

shop = Shop(site)
shop.write(rate=1)
await shop.deploy()            # staged, built, active
await shop.served({"p1": "1"})
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import sqlalchemy as sa

from qo.api.delivery import deploy_version
from qo.dispatcher.state import schema
from qo.pipeline.loading import load_for_deploy
from support.dispatcher.sites import DAG, WITHIN_S, Site
from support.stores.queues import until

PIPELINE = f"""\
name: {DAG}
defaults: {{heartbeat_timeout_seconds: 60, max_attempts: 3}}
jobs:
  - name: feed
    activation: source
    source: {{kind: manual}}
    outputs: 1
  - name: priced
    activation: reactive
    runtime: python
    operator: prices:priced
    inputs: [{{from: {{job: feed}}}}]
    execution_strategy: PerPartition
    outputs: 1
"""
OPERATORS = """\
import time
import rates


def priced(run):
    time.sleep(run.config.get("s", 0.0))
    print("at rate", rates.rate())
    run.output().write("price.txt", str(rates.rate()), rows=1)
"""


class Shop:
    def __init__(self, site: Site, *, own_process: bool = False) -> None:
        self.site = site
        self.home = site.directory / "project"
        self.home.mkdir()
        (self.home / "pipeline.yaml").write_text(PIPELINE)
        (self.home / "prices.py").write_text(OPERATORS)
        # Code that changes the environment cannot run beside another version of itself.
        self._mark = 'os.environ["RATE"] = str(RATE)\n' if own_process else ""

    def write(self, *, rate: int) -> None:
        text = f"import os\nRATE = {rate}\n{self._mark}\n\ndef rate():\n    return RATE\n"
        (self.home / "rates.py").write_text(text)

    async def stage(self, *, code: bool = True) -> dict[str, Any]:
        whole = load_for_deploy(str(self.home / "pipeline.yaml"), code=code)
        return await deploy_version(self.site.client, DAG, whole.source, whole.bundle)

    async def deploy(self, *, code: bool = True) -> int:
        """Stage the version that the directory holds, and let it take over when it is built; its number."""
        answer = await self.stage(code=code)
        version = answer["version"]

        async def caught_up() -> bool:
            self.site.hasten()
            found = await self.site.client.get(f"/v1/dags/{DAG}/rebuild", version=version)
            return found["caught_up"]

        if answer["status"] != "active":
            await until(caught_up, within_s=WITHIN_S, every_s=0.1)
            if answer["status"] == "staged":
                await self.site.client.post(f"/v1/dags/{DAG}/versions/{version}/ready")
            await self.site.client.put(f"/v1/dags/{DAG}/active", {"version": version})
        return version

    async def rollback(self) -> None:
        await self.site.client.post(f"/v1/dags/{DAG}/rollback", repeatable=False)

    def serving(self) -> dict[str, str]:
        """What the active version serves, by partition."""
        parts, pointers, dags, datasets = (
            schema.partitions,
            schema.version_generations,
            schema.dags,
            schema.datasets,
        )
        query = (
            sa.select(parts.c.partition_key, parts.c.location, parts.c.files)
            .join(pointers, pointers.c.generation_id == parts.c.generation_id)
            .join(dags, dags.c.active_version_id == pointers.c.version_id)
            .join(datasets, datasets.c.id == parts.c.dataset_id)
            .where(datasets.c.job == "priced")
        )
        with self.site.state.read() as tx:
            rows = tx.all(query)
        return {
            row["partition_key"]: self._body(f"{row['location'].rstrip('/')}/{row['files'][0]}") for row in rows
        }

    async def served(self, wanted: dict[str, str]) -> None:
        """Wait until that is what readers see."""

        async def same() -> bool:
            self.site.hasten()
            return self.serving() == wanted

        try:
            await until(same, within_s=WITHIN_S, every_s=0.1)
        except TimeoutError:
            raise AssertionError(f"{self.serving()}, not {wanted}") from None

    def bundle(self) -> Path:
        """The only bundle of an embedded site."""
        (found,) = (self.site.directory / ".qo" / "data" / "bundles").glob("*.zip")
        return found

    def _body(self, uri: str) -> str:
        return self.site.body(uri)
