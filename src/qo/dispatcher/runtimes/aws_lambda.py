"""Functions of AWS Lambda, or of a service with the same API.

One function runs all bundles, by the handler ``qo.function.aws.handler``: it fetches the bundle from the URL in the
invocation or, without one, from the dispatcher, and reports through /v1/task. It is invoked asynchronously. Only the
dispatcher retries: the retries of the client and of the service are switched off.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from qo.api.contract.bundle import Invocation
from qo.api.contract.task import Outcome
from qo.dispatcher import aws
from qo.dispatcher.bundles.bundle_store import BundleStore
from qo.errors import NotFound, QoError, Refused, Unavailable
from qo.function.function_messages import Stop, Verdict

log = logging.getLogger(__name__)

PAYLOAD_MAX = 256 * 1024  # Bytes of an asynchronous invocation.


class AwsFunctions:
    """Invokes one function. Safe to use from many threads."""

    def __init__(self, function: str, store: BundleStore, *, region: str, endpoint: str | None = None) -> None:
        self._function = function
        self._store = store
        self._region, self._endpoint = region, endpoint
        self._lock = threading.Lock()
        self._retries_off = False

    def launch(self, invocation: Invocation, watch: Callable[[], Stop | None]) -> Verdict | None:
        """Invoke the function for the attempt. None: it was invoked, and reports its end itself."""
        try:
            self._switch_retries_off()
            self._invoke(payload_of(invocation, self._store.get_url(invocation.bundle_sha256)))
        except Unavailable as error:
            # It may have been invoked all the same; its reports are then fenced off.
            return Verdict(Outcome.RETRYABLE, error=str(error))
        except QoError as error:
            return Verdict(Outcome.FATAL, error=str(error))
        return None

    def _invoke(self, payload: bytes) -> None:
        with aws.asking("Lambda"):
            answer = self._client().invoke(FunctionName=self._function, InvocationType="Event", Payload=payload)
        if answer["StatusCode"] != 202:
            raise Refused(f"Lambda answered {answer['StatusCode']} to an invocation of {self._function}, not 202")

    def _switch_retries_off(self) -> None:
        with self._lock:
            if self._retries_off:
                return
            try:
                with aws.asking("Lambda"):
                    self._client().put_function_event_invoke_config(
                        FunctionName=self._function, MaximumRetryAttempts=0, MaximumEventAgeInSeconds=60
                    )
            except NotFound:
                raise
            except Refused as error:
                # The dispatcher may lack this right; then the operator has to do it.
                log.warning("switch off the retries of the function %s: %s", self._function, error)
            self._retries_off = True

    def _client(self) -> Any:
        return aws.client("lambda", self._region, self._endpoint, attempts=1)


def payload_of(invocation: Invocation, bundle_url: str | None) -> bytes:
    """Return the payload. Lists that are too long for one call are left out; the function fetches them.

    Raises Refused for work that does not fit even then.
    """
    whole = invocation.model_copy(update={"bundle_url": bundle_url})
    payload = whole.model_dump_json().encode()
    if len(payload) <= PAYLOAD_MAX:
        return payload
    inputs = [each.model_copy(update={"pieces": [], "more": True, "after": None}) for each in whole.work.inputs]
    short = whole.model_copy(update={"work": whole.work.model_copy(update={"inputs": inputs})})
    payload = short.model_dump_json().encode()
    if len(payload) > PAYLOAD_MAX:
        raise Refused(
            f"the invocation has {len(payload)} bytes, and Lambda takes {PAYLOAD_MAX}: shorten the job's config"
        )
    return payload
