"""Credentials of a bucket for readers of one table: they read its prefixes, and nothing else.

They are minted as those of attempts are (``qo.dispatcher.auth.credentials``), and lent to all readers of a table until
half of their time is over: STS need not be asked each time that somebody loads a table.
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

from qo.api.contract.credential import CredentialsAnswer
from qo.config.settings import Settings
from qo.core.pipeline.reach import Reach, fit_reach
from qo.dispatcher.auth.credentials import DURATION_MAX_S, AssumeRoleRequest, assume, partition_of_role
from qo.errors import Refused

OFF = "off"
LENT_S = DURATION_MAX_S / 2


def table_role(settings: Settings) -> str | None:
    """Return the role that credentials of tables are minted from; None: none are minted."""
    dispatcher = settings.dispatcher
    role_arn = dispatcher.catalog_role_arn or dispatcher.role_arn
    if role_arn == OFF or not dispatcher.data_root.startswith("s3://"):
        return None
    return role_arn


def require_table_role(settings: Settings) -> str:
    """Return the role that credentials of tables are minted from. Raises Refused if none are minted."""
    role_arn = table_role(settings)
    if role_arn is None:
        raise Refused(
            "this catalogue lends no credentials: read the files with your own, or let the dispatcher's admin keep the "
            "data in a bucket and set QO_CATALOG_ROLE_ARN to a role that the dispatcher may assume"
        )
    return role_arn


class TableCredentials:
    """The credentials that are lent at present. Safe for threads."""

    def __init__(self) -> None:
        self._held: dict[Reach, CredentialsAnswer] = {}
        self._lock = threading.Lock()

    def lend(self, reach: Reach, dataset_id: str, settings: Settings, now: datetime) -> CredentialsAnswer:
        """Return credentials that are good for half an hour at least. May call STS, so not within a transaction.

        Raises Refused if none are minted, UsageError for more prefixes than a policy holds, Unavailable when STS does
        not answer.
        """
        role_arn = require_table_role(settings)
        soon = now + timedelta(seconds=LENT_S)
        with self._lock:
            self._held = {each: held for each, held in self._held.items() if held.expiration > soon}
            if (held := self._held.get(reach)) is not None:
                return held
        until = now + timedelta(seconds=DURATION_MAX_S)
        fitted = fit_reach(reach, until=until, partition=partition_of_role(role_arn))
        request = AssumeRoleRequest.of(role_arn, f"qo-table-{dataset_id}"[:64], DURATION_MAX_S, until, fitted)
        answer = assume(request, settings)
        with self._lock:
            self._held[reach] = answer
        return answer
