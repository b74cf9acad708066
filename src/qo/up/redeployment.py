"""Deploys pipelines again when their files are saved, while ``qo up`` runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from qo.errors import QoError, UsageError
from qo.pipeline.code.functions import check
from qo.pipeline.registry import Registry
from qo.pipeline.target import resolve, unload
from qo.up import report
from qo.up.installation import Installation
from qo.up.rollout import Rollout
from qo.up.saved_files import SavedFiles
from qo.up.targets import Pipeline, import_path, read

Print = Callable[[str], None]


class Redeployment:
    """Watches the files of the pipelines of one ``qo up``. A version that cannot be deployed leaves all as it is."""

    def __init__(
        self,
        targets: Sequence[str],
        pipelines: Sequence[Pipeline],
        registry: Registry,
        *,
        warnings: Sequence[str] = (),
        keep: bool = False,
    ) -> None:
        self._targets, self._registry, self._keep = targets, registry, keep
        self._pipelines = {each.name: each for each in pipelines}
        self._directories = import_path(pipelines)
        self._files = SavedFiles(self._directories)
        self._warnings = set(warnings)  # Of the first deploy: they are no news.

    async def advance(self, installation: Installation, rollouts: list[Rollout], print_line: Print) -> bool:
        """Deploy what was saved since the last call, and return whether a version was deployed.

        The rollout of a new version replaces that of the one before.
        """
        if not await asyncio.to_thread(self._files.poll):
            return False
        deployed = False
        self._files.mark_read()
        unload(self._directories)
        for target in self._targets:
            try:
                pipeline = await asyncio.to_thread(self._read, target)
                deployed |= await self._deploy(pipeline, installation, rollouts, print_line)
            except QoError as error:
                print_line("saved, and not deployed; what serves goes on:")
                for line in str(error).splitlines():
                    print_line(f"  {line}")
        return deployed

    def _read(self, target: str) -> Pipeline:
        """Load a pipeline. Raises a QoError for anything that is wrong with it, also with its code."""
        pipeline, warnings = read(target, self._registry)
        file = resolve(target).file
        if file is not None:
            check(pipeline.dag, file.read_text("utf-8-sig"), str(file), registry=self._registry)
        unknown = [each for each in warnings if each not in self._warnings]
        if unknown:  # Code that was found before cannot be read now: it would run as the workers have it.
            raise UsageError("\n".join(unknown))
        return pipeline

    async def _deploy(
        self, pipeline: Pipeline, installation: Installation, rollouts: list[Rollout], print_line: Print
    ) -> bool:
        before = self._pipelines.get(pipeline.name)
        if before is None:
            print_line(f"there is a pipeline {pipeline.name} now: start qo up again to run it")
            return False
        if pipeline.source == before.source:
            return False  # A comment, or a file that no job depends on.
        deployed = await installation.deploy(pipeline)
        self._pipelines[pipeline.name] = pipeline
        installation.start_workers(pipeline.runtimes if deployed.rebuilt else ())
        report.print_deployed(deployed, print_line)
        at = next(index for index, each in enumerate(rollouts) if each.dag == pipeline.name)
        rollouts[at] = Rollout(deployed, self._keep)
        return True
