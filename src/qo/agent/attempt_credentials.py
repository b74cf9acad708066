"""The credentials of one attempt: minted by the dispatcher when they are first used, and renewed before they end.

An attempt that touches no data costs no request. One that runs for hours has new credentials in time, because each
request asks for the current ones.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from qo.api.contract.credential import CredentialsAnswer
from qo.errors import AccessDenied, Contended, LeaseLost, QoError, StoreError, Unavailable, UsageError
from qo.worker.observe.secrets import forget_secret, register_secret

if TYPE_CHECKING:
    from qo.store.s3.aws_credentials import Credentials

log = logging.getLogger(__name__)

RENEW_BEFORE = timedelta(minutes=5)  # Their end. STS grants no less than 15.
SPARE = timedelta(seconds=30)  # A request that is signed now must still arrive in time.
ASK_AGAIN = timedelta(seconds=5)  # After a renewal that failed, while the present ones are still good.

Mint = Callable[[], Awaitable[CredentialsAnswer]]
Renewal = Callable[[], Mapping[str, Any]]


class AttemptCredentials:
    """Use ``current`` in the event loop of the worker, and ``answer`` from threads."""

    def __init__(
        self,
        mint: Mint,
        now: Callable[[], datetime],
        loop: asyncio.AbstractEventLoop,
        renewal: Renewal | None = None,
    ) -> None:
        """``now``: by the clock of the dispatcher. ``renewal``: the request that mints, for other processes."""
        self._renewal = renewal
        self._mint = mint
        self._now = now
        self._loop = loop
        self._held: CredentialsAnswer | None = None
        self._renew_at: datetime | None = None
        self._minting = asyncio.Lock()
        self._secrets: set[str] = set()  # That are kept out of logs while the attempt runs.

    async def current(self) -> Credentials:
        """Return credentials that are valid now.

        Raises LeaseLost once the attempt is over, AccessDenied if the dispatcher refuses, UsageError if the attempt
        reads more than credentials can say, Unavailable if the dispatcher does not answer.
        """
        from qo.store.s3.aws_credentials import Credentials  # Only who reads a bucket loads its client.

        held = await self._current()
        return Credentials(held.access_key_id, held.secret_access_key, held.session_token)

    def answer(self) -> CredentialsAnswer:
        """The same with their end and their prefixes. Blocks: never call it in the event loop."""
        return asyncio.run_coroutine_threadsafe(self._current(), self._loop).result()

    def renewal(self) -> str | None:
        """Return how another process that does the work of the attempt can renew them: the request, as JSON."""
        return None if self._renewal is None else json.dumps(self._renewal())

    def discard(self) -> None:
        """Mint others at the next use: the attempt reads more than before."""
        self._renew_at = None

    def close(self) -> None:
        """The attempt has ended. Its credentials go on to be valid until their end, for its own prefixes."""
        self._held = self._renew_at = None
        for each in self._secrets:
            forget_secret(each)
        self._secrets.clear()

    async def _current(self) -> CredentialsAnswer:
        async with self._minting:  # One renewal serves all waiting callers.
            held, renew_at = self._held, self._renew_at
            if held is not None and renew_at is not None and self._now() < renew_at:
                return held
            try:
                held = self._held = await self._mint()
            except (Unavailable, Contended) as error:
                if held is None or renew_at is None or self._now() > held.expiration - SPARE:
                    raise
                log.warning("the credentials of an attempt cannot be renewed yet: %s", error)
                self._renew_at = self._now() + ASK_AGAIN
                return held
            except (LeaseLost, StoreError, UsageError):
                raise
            except QoError as error:
                raise AccessDenied(f"the dispatcher mints no credentials for this attempt: {error}") from error
            self._secrets |= {register_secret(held.secret_access_key), register_secret(held.session_token)}
            self._renew_at = _renewal_time(self._now(), held.expiration)
            return held


def _renewal_time(now: datetime, end: datetime) -> datetime:
    """Return when to renew: some minutes before the end, or halfway to it if that is sooner than these."""
    return max(end - RENEW_BEFORE, now + (end - now) / 2)
