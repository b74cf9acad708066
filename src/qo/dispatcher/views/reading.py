"""The committed files of a dataset, now or as of a version."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from qo.api.contract.reading import ReadingAnswer
from qo.api.contract.task import Piece
from qo.dispatcher.commits import dataset_columns
from qo.dispatcher.commits.pieces import PIECES_MAX, standing
from qo.dispatcher.state import commit_locks, schema
from qo.dispatcher.state.database import State, Tx, batches
from qo.dispatcher.state.datasets import DatasetRef, choose_generation, require_version, resolve
from qo.errors import NotFound

_commits, _generations = schema.commits, schema.generations


def fix_revision(
    state: State, text: str, revision: int | None = None, generation_id: str | None = None
) -> tuple[str | None, int | None]:
    """Return the generation and the revision that ``pieces`` is to read, so that all its pages show one state.

    Waits for commits that are under way: they may get earlier revisions than one that is visible. Raises NotFound.
    """
    if state.engine.dialect.name != "postgresql":
        return generation_id, revision
    with state.read() as tx:
        ref = resolve(tx, text)
        if generation_id is None and revision is not None:
            generation_id = _generation_of_revision(tx, ref, revision)
        generation = choose_generation(tx, ref, generation_id)
        latest = tx.value(sa.select(_generations.c.revision).where(_generations.c.id == generation))
    commit_locks.await_commits_first(state, [generation])
    return generation, latest if revision is None else revision


def pieces(
    tx: Tx,
    text: str,
    *,
    revision: int | None = None,
    generation_id: str | None = None,
    after: str | None = None,
    limit: int = PIECES_MAX,
) -> ReadingAnswer:
    """Return one page of pieces.

    If a commit of the dataset made the revision, its generation is read, even an old one; otherwise the current
    generation as of the revision. Raises NotFound for an unknown dataset or generation, for a revision that does not
    exist yet, and for one whose files were collected.
    """
    ref = resolve(tx, text)
    if generation_id is None and revision is not None:
        generation_id = _generation_of_revision(tx, ref, revision)
    generation = choose_generation(tx, ref, generation_id)
    latest = tx.value(sa.select(_generations.c.revision).where(_generations.c.id == generation))
    if latest is None:
        return ReadingAnswer(dataset_id=ref.id, generation_id=generation, pieces=[])
    if revision is not None:
        require_version(tx, ref, generation, revision)
    upto = latest if revision is None else min(revision, latest)
    page, rest = standing(tx, generation, after, limit, upto)
    _require_kept(tx, ref, upto, page)
    columns = dataset_columns.as_of(tx, generation, upto)
    return ReadingAnswer(
        dataset_id=ref.id,
        generation_id=generation,
        revision=upto,
        committed_at=tx.value(sa.select(_commits.c.committed_at).where(_commits.c.revision == upto)),
        columns=None if columns is None else dataset_columns.bodies(columns),
        pieces=page,
        after=rest,
    )


def _require_kept(tx: Tx, ref: DatasetRef, revision: int, page: Sequence[Piece]) -> None:
    for some in batches(each.revision for each in page):
        collected = sa.and_(_commits.c.revision.in_(some), _commits.c.collected_at.is_not(None))
        at = tx.value(sa.select(_commits.c.collected_at).where(collected).limit(1))
        if at is not None:
            raise NotFound(
                f"{ref.label} can no longer be read as of revision {revision}: files of it were collected on "
                f"{at:%Y-%m-%d}. Read a later version, or collect with a longer --older-than"
            )


def _generation_of_revision(tx: Tx, ref: DatasetRef, revision: int) -> str | None:
    query = sa.select(_commits.c.generation_id)
    return tx.value(query.where(_commits.c.revision == revision, _commits.c.dataset_id == ref.id))
