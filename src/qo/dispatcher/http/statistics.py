"""Routes for what is known of columns, and for how a dataset moved."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from qo.api.contract.statistics import ColumnStatisticsAnswer, TrendAnswer
from qo.dispatcher.http.datasets import Generation, Key, Name
from qo.dispatcher.http.routes import ContextParam, Routes
from qo.dispatcher.views import column_statistics, dataset_trend
from qo.dispatcher.views.dataset_trend import POINTS_MAX, By


def show_columns(
    context: ContextParam, name: Name, partition_key: Key = None, generation_id: Generation = None
) -> ColumnStatisticsAnswer:
    """Show nulls, distinct values and bounds of the columns of a dataset, as workers have measured its files."""
    with context.state.read() as tx:
        return column_statistics.show(tx, name, partition_key=partition_key, generation_id=generation_id)


def show_trend(
    context: ContextParam,
    name: Name,
    by: Annotated[By, Query(description="A point for each commit, or for each partition.")] = By.COMMIT,
    column: Annotated[
        str | None, Query(max_length=200, description="Count the nulls of this column; unset: of all.")
    ] = None,
    partition_key: Key = None,
    generation_id: Generation = None,
    before: Annotated[
        str | None, Query(max_length=200, description="Where the page before ended: its next.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=POINTS_MAX, description="How many at most.")] = 100,
) -> TrendAnswer:
    """Show how rows, bytes, nulls and the results of expectations moved, by commit or by partition."""
    with context.state.read() as tx:
        return dataset_trend.show(
            tx,
            name,
            by=by,
            column=column,
            partition_key=partition_key,
            generation_id=generation_id,
            before=before,
            limit=limit,
        )


def install(routes: Routes) -> None:
    routes.get("/v1/datasets/{name}/columns", show_columns, 404)
    routes.get("/v1/datasets/{name}/trend", show_trend, 404)
