"""The statistics of files that commits carry, loaded within a bound: those of very many files take a mebibyte."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sqlalchemy as sa

from qo.core.pipeline.file_stats import FileStats, unpack_stats
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches

PACKED_BYTES_MAX = 4 << 20  # So much is loaded for one answer.

_commits = schema.commits
SIZE = sa.func.coalesce(sa.func.length(_commits.c.file_stats), 0).label("stats_size")  # Reads none of it.


def load_files(tx: Tx, sizes: Iterable[tuple[int, int]]) -> Mapping[int, list[FileStats]]:
    """Return the statistics of each file of commits by revision; commits without any are left out.

    ``sizes``: revisions, each with its ``SIZE``. Those beyond the bound are left out, too.
    """
    within: list[int] = []
    budget = PACKED_BYTES_MAX
    for revision, size in sizes:
        if 0 < size <= budget:
            budget -= size
            within.append(revision)
    files: dict[int, list[FileStats]] = {}
    for some in batches(within):
        query = sa.select(_commits.c.revision, _commits.c.file_stats).where(_commits.c.revision.in_(some))
        for revision, packed in tx.execute(query):
            if measured := unpack_stats(packed):
                files[revision] = list(measured.values())
    return files
