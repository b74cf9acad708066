"""What there is to read of a dataset: exactly the committed files, as of now or as of a version."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from qo.api.contract.reading import ReadingAnswer
from qo.api.contract.task import Piece
from qo.dispatcher.commits import dataset_columns
from qo.dispatcher.commits.pieces import PIECES_MAX, standing
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.state.datasets import DatasetRef, choose_generation, require_version, resolve
from qo.errors import NotFound

_commits, _generations = schema.commits, schema.generations


def pieces(
    tx: Tx,
    text: str,
    *,
    revision: int | None = None,
    generation_id: str | None = None,
    after: str | None = None,
    limit: int = PIECES_MAX,
) -> ReadingAnswer:
    """One page. The revision that a commit of the dataset made also names its generation, which may be an old one;
    of any other revision the current generation is shown as it was then.

    Raises NotFound for a dataset or generation that is not there, for a revision that is yet to come, and for one of
    which files were collected.
    """
    ref = resolve(tx, text)
    if generation_id is None and revision is not None:
        generation_id = _made_by(tx, ref, revision)
    generation = choose_generation(tx, ref, generation_id)
    latest = tx.value(sa.select(_generations.c.revision).where(_generations.c.id == generation))
    if latest is None:
        return ReadingAnswer(dataset_id=ref.id, generation_id=generation, pieces=[])
    if revision is not None:
        require_version(tx, ref, generation, revision)
    upto = latest if revision is None else min(revision, latest)
    found, rest = standing(tx, generation, after, limit, upto)
    _require_kept(tx, ref, upto, found)
    columns = dataset_columns.as_of(tx, generation, upto)
    return ReadingAnswer(
        dataset_id=ref.id,
        generation_id=generation,
        revision=upto,
        committed_at=tx.value(sa.select(_commits.c.committed_at).where(_commits.c.revision == upto)),
        columns=None if columns is None else dataset_columns.bodies(columns),
        pieces=found,
        after=rest,
    )


def _require_kept(tx: Tx, ref: DatasetRef, revision: int, found: Sequence[Piece]) -> None:
    for some in batches(each.revision for each in found):
        gone = sa.and_(_commits.c.revision.in_(some), _commits.c.collected_at.is_not(None))
        at = tx.value(sa.select(_commits.c.collected_at).where(gone).limit(1))
        if at is not None:
            raise NotFound(
                f"{ref.label} is not there any more as it was at revision {revision}: files of it were collected on "
                f"{at:%Y-%m-%d}. Read a later version, or collect with a longer --older-than"
            )


def _made_by(tx: Tx, ref: DatasetRef, revision: int) -> str | None:
    made = sa.select(_commits.c.generation_id)
    return tx.value(made.where(_commits.c.revision == revision, _commits.c.dataset_id == ref.id))
