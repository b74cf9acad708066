"""The prefixes of a bucket in which a table lies: its dataset, its metadata, and pieces that lie elsewhere.

Pieces lie elsewhere if a source announced files where they were, or if a job passed on what another one had made.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from qo.core.pipeline.policy import normalise
from qo.core.pipeline.reach import (
    GENERATION_LEVELS,
    Reach,
    common_directories,
    directory_above,
    root_prefix,
    split_places,
)
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.views.open_tables import TableRecord
from qo.errors import UsageError

ELSEWHERE_MAX = 100  # Places outside the dataset that are looked at.

_commits, _generations = schema.commits, schema.generations


def find_table_reach(tx: Tx, record: TableRecord, locations: Iterable[str], data_root: str) -> Reach:
    """Return what a reader of the table reads, from the narrowest reading to the widest.

    ``locations``: directories that the document of the table names. Raises UsageError for more places than credentials
    can be limited to.
    """
    home = f"{data_root.rstrip('/')}/{record.dataset_id}/"
    inside, outside = split_places(_elsewhere(tx, record.dataset_id, home), data_root)
    directories = [normalise(each) for each in locations if each.startswith("s3://")]
    always = {normalise(home), *directories, *common_directories(outside)}
    for each in always:
        if each.covers(root_prefix(data_root)):
            raise UsageError(
                f"{record.name} has files in many places around the data root, and credentials for {each} would open "
                "all data"
            )
    generations = {directory_above(each, data_root, GENERATION_LEVELS) for each in inside}
    return Reach((), (tuple(sorted({*always, *inside})), tuple(sorted({*always, *generations}))))


def _elsewhere(tx: Tx, dataset_id: str, home: str) -> list[str]:
    """Return the places of pieces that do not lie in their dataset. Raises UsageError if there are too many."""
    generations = sa.select(_generations.c.id).where(
        _generations.c.dataset_id == dataset_id, _generations.c.collected_at.is_(None)
    )
    query = (
        sa.select(_commits.c.location)
        .distinct()
        .where(
            _commits.c.generation_id.in_(generations),
            _commits.c.location.is_not(None),
            _commits.c.collected_at.is_(None),
            sa.func.substr(_commits.c.location, 1, len(home)) != home,
        )
        .limit(ELSEWHERE_MAX + 1)
    )
    places = [row[0] for row in tx.execute(query)]
    if len(places) > ELSEWHERE_MAX:
        raise UsageError(
            f"the table has files in more than {ELSEWHERE_MAX} places outside its dataset, and credentials for so "
            "many cannot be minted: read it with your own"
        )
    return places
