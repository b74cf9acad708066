"""Reads a dataset from any Spark session.

    import qo
    flights = qo.read(spark, "flights")

The frame is pinned: it shows what was committed when it was made, even if others commit while it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from qo.api.contract.reading import ReadingAnswer
from qo.api.contract.task import Piece
from qo.api.public_client import UserClient
from qo.config.origins import load
from qo.config.settings import Settings
from qo.dispatcher.state import upgrade
from qo.dispatcher.state.database import open_state
from qo.dispatcher.state.engines import sqlite_path
from qo.dispatcher.views import reading
from qo.errors import NotFound, UsageError
from qo.spark.engine.sync import wait
from qo.spark.io.appending import uris_of
from qo.spark.io.columns import columns_from_bodies, struct_of
from qo.spark.io.files import files_for
from qo.spark.io.input_frames import read_files


@dataclass(frozen=True, slots=True)
class Pinned:
    """One state of one dataset, with all its pieces."""

    first: ReadingAnswer
    pieces: tuple[Piece, ...]


def read(
    spark: SparkSession, name: str, *, version: int | None = None, settings: Settings | None = None
) -> DataFrame:
    """Return a dataset, named as published, ``dag.job`` or ``dag.job[1]``, as it is now or as of a version.

    A version is the revision that a commit made; ``qo dataset history`` lists them. The settings are those of the
    command line, unless others are given. Raises NotFound, also for a version before the first commit, and UsageError
    for a dataset that has never had data.
    """
    if version is not None and version < 0:
        raise UsageError(f"version is {version}: see qo dataset history {name} for those that there are")
    resolved = settings if settings is not None else load()
    pinned = pin(resolved, name, version)
    columns = columns_from_bodies(pinned.first.columns)
    uris = uris_of(pinned.pieces)
    if version is not None and not columns and not uris:
        raise NotFound(f"{name!r} had no data yet at version {version}: see qo dataset history {name}")
    files = files_for(resolved, uris[0] if uris else resolved.dispatcher.data_root)
    return read_files(spark, uris, struct_of(columns) if columns else None, files, name)


def pin(settings: Settings, name: str, version: int | None = None) -> Pinned:
    """Return the pieces of a dataset, now or as of a version, from the dispatcher or its state database."""
    if settings.dispatcher.url is not None:
        return wait(_fetch(settings, name, version))
    _require_installation(settings.dispatcher.state)
    state = open_state(settings.dispatcher.state)
    try:
        upgrade.require(state)
        generation, at = reading.fix_revision(state, name, version)
        with state.read() as tx:  # One transaction: all pages show one state.
            first = page = reading.pieces(tx, name, revision=at, generation_id=generation)
            pieces = list(page.pieces)
            while page.after is not None:
                generation, revision = first.generation_id, first.revision
                page = reading.pieces(tx, name, revision=revision, generation_id=generation, after=page.after)
                pieces += page.pieces
    finally:
        state.close()
    return Pinned(first, tuple(pieces))


def _require_installation(url: str) -> None:
    """Raise NotFound if there is no state database: a reader must not create one."""
    path = sqlite_path(url)
    if path is not None and (not path.is_file() or path.stat().st_size == 0):
        raise NotFound(
            f"there is no installation of qo here: no state database is at {path.absolute()}; start in the directory "
            "of the installation, or name its state (QO_STATE) or its dispatcher (QO_DISPATCHER_URL)"
        )


async def _fetch(settings: Settings, name: str, version: int | None) -> Pinned:
    async with UserClient.from_settings(settings.dispatcher) as client:

        async def get(**params: Any) -> ReadingAnswer:
            query = {key: value for key, value in params.items() if value is not None}
            return ReadingAnswer.model_validate(await client.get(f"/v1/datasets/{name}/pieces", **query))

        first = page = await get(revision=version)
        pieces = list(page.pieces)
        while page.after is not None:
            page = await get(revision=first.revision, generation_id=first.generation_id, after=page.after)
            pieces += page.pieces
    return Pinned(first, tuple(pieces))
