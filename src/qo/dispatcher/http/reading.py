"""The route for readers of the data itself."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from qo.api.contract.reading import ReadingAnswer
from qo.api.contract.task import NUMBER_MAX
from qo.dispatcher.commits.pieces import PIECES_MAX
from qo.dispatcher.http.datasets import Name
from qo.dispatcher.http.routes import AfterPiece, ContextParam, Routes
from qo.dispatcher.views import reading


def list_pieces(
    context: ContextParam,
    name: Name,
    revision: Annotated[
        int | None, Query(ge=0, le=NUMBER_MAX, description="As of this revision; unset: now.")
    ] = None,
    generation_id: Annotated[
        str | None, Query(max_length=36, description="Unset: the current generation.")
    ] = None,
    after: AfterPiece = None,
    limit: Annotated[int, Query(ge=1, le=PIECES_MAX)] = PIECES_MAX,
) -> ReadingAnswer:
    """List the committed files of a dataset, as of now or as of a revision.

    Pass the generation and revision of the first page with each following one: all pages then show one state.
    """
    if after is None:
        generation_id, revision = reading.fix_revision(context.state, name, revision, generation_id)
    with context.state.read() as tx:
        return reading.pieces(tx, name, revision=revision, generation_id=generation_id, after=after, limit=limit)


def install(routes: Routes) -> None:
    routes.get("/v1/datasets/{name}/pieces", list_pieces, 404)
