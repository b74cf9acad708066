"""Declares sources in Python: what announces new data without calling a function. Others see ``declare.Pipeline``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from qo.pipeline.declaration import Declaration, JobName, drop_none, name_job, spot_of_caller, write_partitions


class SourceDeclaration(Declaration):
    def manual(
        self, *, name: str | None = None, partition: str | Mapping[str, Any] | None = None, **fields: Any
    ) -> JobName:
        """Declare a source of which people and programs say that it has new data, as ``qo emit`` does."""
        frame = inspect.currentframe()
        job = {"name": name_job(name, frame, "manual"), "partitions": write_partitions(partition), **fields}
        return self._add_job({**job, "source": "manual"}, spot_of_caller(frame))

    def cron(
        self, schedule: str, *, name: str | None = None, timezone: str | None = None, **fields: Any
    ) -> JobName:
        """Declare a schedule: five fields, or ``rate(5 minutes)``."""
        frame = inspect.currentframe()
        source = drop_none(kind="cron", schedule=schedule, timezone=timezone)
        return self._add_job(
            {"name": name_job(name, frame, "cron"), "source": source, **fields}, spot_of_caller(frame)
        )

    def webhook(
        self,
        path: str,
        *,
        secret: str,
        name: str | None = None,
        partition: str | Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> JobName:
        """Declare a path that takes signed requests; ``secret`` is the name of the secret that signs them."""
        frame = inspect.currentframe()
        source = {"kind": "webhook", "webhook_path": path, "secret": secret}
        job = {"name": name_job(name, frame, "webhook"), "partitions": write_partitions(partition), **fields}
        return self._add_job({**job, "source": source}, spot_of_caller(frame))

    def http(
        self,
        *urls: str,
        name: str | None = None,
        index_url: str | None = None,
        url: str | None = None,
        key: str | None = None,
        poll_seconds: int | None = None,
        **fields: Any,
    ) -> JobName:
        """Declare files behind URLs: these, those that a file at ``index_url`` lists, or with ``url`` one for each
        partition."""
        frame = inspect.currentframe()
        listed: Sequence[str] | None = list(urls) or None
        source = drop_none(
            kind="http", urls=listed, index_url=index_url, url=url, key=key, poll_seconds=poll_seconds
        )
        return self._add_job(
            {"name": name_job(name, frame, "http"), "source": source, **fields}, spot_of_caller(frame)
        )
