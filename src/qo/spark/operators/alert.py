"""alert: sends every row that a query finds to people, at least once, under an id that stays the same.

The id follows from the job, the task's partition or cursor, and the row. A receiver recognises by it an alert that is
sent again, because an attempt died after sending it or a partition was rebuilt.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any, cast

import httpx
from pyspark.sql.types import StringType, StructField, StructType

from qo.agent.dataset_files import resolve_uri
from qo.agent.operator_run import Run
from qo.core.words import plural
from qo.errors import UsageError
from qo.spark.operators.operator_context import Context, Frames
from qo.spark.operators.sql import query_frame
from qo.worker.api.signals import Reject, Retry

LIMIT = 1_000
IDS_SHOWN = 20
TIMEOUT_S = 10.0
_SPACE = uuid.UUID("5b0c3f0e-35d7-5a0f-9df1-6a1d5c5e8c11")  # The name space of alert ids.


@dataclass(frozen=True, slots=True)
class Alert:
    id: str
    row: Mapping[str, Any]

    def document(self, run: Run) -> dict[str, Any]:
        work = run.work
        subject = {"partition_key": work.partition_key, "cursor": work.cursor}
        present = {key: value for key, value in subject.items() if value is not None}
        return {"id": self.id, "dag": work.dag, "job": work.job, **present, "row": dict(self.row)}


def run(context: Context) -> Frames:
    limit = int(context.config.get("limit", LIMIT))
    frame = query_frame(context)
    rows = frame.limit(limit + 1).collect()
    if len(rows) > limit:
        raise UsageError(
            f"the query found more than {plural(limit, 'row')}: an alert is for people. Narrow it, or raise 'limit'"
        )
    values = [_json_value(row.asDict(recursive=True)) for row in rows]
    alerts = [Alert(alert_id(context.run, each), each) for each in values]
    deliver(context, alerts)
    context.details.update(alerts=len(alerts), alert_ids=[each.id for each in alerts[:IDS_SHOWN]])
    if not context.run.outputs:
        return {}
    # The rows that were sent. To run the query again might find others.
    schema = StructType([StructField("alert_id", StringType(), False), *frame.schema])
    output_rows = [(each.id, *cast("tuple[Any, ...]", row)) for each, row in zip(alerts, rows, strict=True)]
    return {context.only_output(): context.frame(output_rows, schema).coalesce(1)}


def alert_id(run: Run, row: Mapping[str, Any]) -> str:
    work = run.work
    identity = [work.dag, work.job, work.partition_key, work.cursor, row]
    return str(uuid.uuid5(_SPACE, json.dumps(identity, sort_keys=True)))


def deliver(context: Context, alerts: Sequence[Alert]) -> None:
    channel = context.config.get("channel", "log")
    if channel == "webhook":
        _post(context, alerts)
    elif channel == "file":
        _write(context, alerts)
    elif channel == "log":
        for each in alerts:
            context.run.log.warning("alert %s", json.dumps(each.document(context.run)))
    else:
        raise UsageError(f"there is no channel {channel!r}: write log, webhook or file")


def _post(context: Context, alerts: Sequence[Alert]) -> None:
    url = _url(context)
    with httpx.Client(timeout=TIMEOUT_S) as client:
        for each in alerts:
            context.run.cancel.check()
            _post_one(client, url, each, context.run)


def _post_one(client: httpx.Client, url: str, alert: Alert, run: Run) -> None:
    try:
        answer = client.post(url, json=alert.document(run), headers={"Idempotency-Key": alert.id})
    except httpx.HTTPError as error:
        raise Retry(f"alert {alert.id} could not be sent: {error!r}") from error
    status = answer.status_code
    if 400 <= status < 500 and status not in (408, 429):
        raise Reject(f"alert {alert.id} was refused with {status}: {answer.text[:200]}")
    if not answer.is_success:
        raise Retry(f"alert {alert.id} was answered with {status}: {answer.text[:200]}")


def _url(context: Context) -> str:
    """Return the URL from the config, or from a secret, if it contains a password."""
    url, secret = context.config.get("url"), context.config.get("url_secret")
    if (url is None) == (secret is None):
        raise UsageError("the channel webhook needs either 'url' or 'url_secret' in the config")
    return str(url) if url is not None else context.run.secret(str(secret))


def _write(context: Context, alerts: Sequence[Alert]) -> None:
    path = context.config.get("path")
    if path is None:
        raise UsageError("the channel file needs a 'path' in the config: a directory, or s3://BUCKET/PREFIX")
    root = resolve_uri(str(path), str(Path.cwd())).rstrip("/")
    for each in alerts:
        # One file for each alert: sending it again overwrites the same file.
        body = json.dumps(each.document(context.run)).encode()
        context.run.storage.write(f"{root}/{each.id}.json", body)


def _json_value(value: Any) -> Any:
    """Return a value as JSON can hold it, always in the same way."""
    match value:
        case Mapping():
            return {str(key): _json_value(each) for key, each in cast("Mapping[Any, Any]", value).items()}
        case list() | tuple():
            return [_json_value(each) for each in cast("Sequence[Any]", value)]
        case date() | datetime():
            return value.isoformat()
        case bytes() | bytearray():
            return value.hex()
        case None | bool() | int() | str():
            return value
        case float() if math.isfinite(value):
            return value
        case _:
            return str(value)
