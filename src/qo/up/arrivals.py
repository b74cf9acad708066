"""What there is for file sources: whether their places can be looked at, and whether the scheduler has announced every
file. Who runs a pipeline once waits for that."""

from __future__ import annotations

import msgspec

from qo.api.contract.source import LiveSource
from qo.config.settings import Settings
from qo.core.pipeline.dag import Dag
from qo.errors import QoError
from qo.pipeline.sources import SOURCES
from qo.scheduler.file_listing import matches
from qo.scheduler.files import open_place_of
from qo.scheduler.sightings import Sightings


async def unreadable(dag: Dag, settings: Settings) -> list[str]:
    """Sources of which nothing can come as it is, and why: better said at once than in the log of the scheduler."""
    found: list[str] = []
    for job in dag.jobs:
        if job.source is None or SOURCES[job.source.kind].place is None:
            continue
        try:
            place = await open_place_of(job.source.kind, msgspec.to_builtins(job.source), settings)
            try:
                async for _ in place.files():
                    break
            finally:
                await place.close()
        except (QoError, OSError) as error:
            found.append(f"{job.name} finds no files: {error}")
    return found


async def announced(source: LiveSource, settings: Settings) -> bool:
    """Whether what a file source remembers is what lies there now.

    The scheduler keeps a digest of all it has announced; the same digest over what is there tells, without asking for
    a single file, that nothing is left to say.
    """
    seen = Sightings()
    pattern = str(source.config.get("pattern") or "*")
    try:
        place = await open_place_of(source.kind, source.config, settings)
        try:
            async for page in place.files():
                for each in page:
                    if matches(each.path, pattern):
                        seen.mark_announced(each.path, each.etag)
        finally:
            await place.close()
    except (QoError, OSError):
        return True  # Nothing can be announced from there; the scheduler's log and qo source list say why.
    if len(seen) == 0 and source.memory is None:
        return True
    return seen.memory() == source.memory
