"""Check file sources: whether their places can be listed, and whether the scheduler has announced every file.

``qo up --once`` waits for the latter.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from qo.api.contract.source import LiveSource
from qo.config.settings import Settings
from qo.core.pipeline.dag import Dag
from qo.core.pipeline.key_pattern import find_keys
from qo.errors import QoError
from qo.pipeline.sources import SOURCES
from qo.scheduler.file_listing import matches
from qo.scheduler.file_source import open_place_of
from qo.scheduler.sightings import Sightings


async def describe_unreadable(dag: Dag, settings: Settings) -> list[str]:
    """Return a warning for each source whose files cannot be listed, which otherwise only the scheduler's log shows."""
    warnings: list[str] = []
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
            warnings.append(f"{job.name} finds no files: {error}")
    return warnings


async def is_fully_announced(source: LiveSource, settings: Settings, at: datetime) -> bool:
    """Return whether the scheduler has announced all files of a source.

    The scheduler keeps a digest of the files that it has announced. It is compared with the digest of the files that
    are there now.
    """
    sightings = Sightings()
    pattern = str(source.config.get("pattern") or "*")
    try:
        place = await open_place_of(source.kind, source.config, settings)
        try:
            etags: dict[str, str] = {}
            async for page in place.files(at):
                etags |= {each.path: each.etag for each in page if matches(each.path, pattern)}
            for path in find_keys(source.config.get("key"), etags):
                sightings.mark_announced(path, etags[path])
        finally:
            await place.close()
    except (QoError, OSError):
        return True  # No file can be announced; the scheduler's log and qo source list say why.
    if len(sightings) == 0 and source.memory is None:
        return True
    return sightings.memory() == source.memory
