"""Bundles of code that the dispatcher runs on its own machine: in a sandbox, or without if every writer is trusted.

The rest, heartbeats and the report, is the invoker's: see ``invoker``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from qo.api.contract.bundle import Invocation
from qo.api.contract.task import Outcome, Work
from qo.config.location import local_path
from qo.dispatcher.bundles.bundle_store import BundleStore
from qo.errors import QoError, Unavailable
from qo.function import execution
from qo.function.execution import Conditions
from qo.function.function_messages import Stop, Verdict, parse_request
from qo.function.sandbox import Access, Sandbox

NO_RUNTIME = (
    "this dispatcher runs no bundles: set QO_LAMBDA_FUNCTION to a function that does, or QO_LAMBDA_LOCAL=sandbox to "
    "run them on its own machine; restart the dispatcher, then replay the task"
)
NO_SANDBOX = (
    "install bubblewrap or allow unprivileged user namespaces, or set QO_LAMBDA_FUNCTION; QO_LAMBDA_LOCAL=unsafe runs "
    "bundles without a sandbox, which makes every writer an admin; restart the dispatcher, then replay the task"
)


class Functions(Protocol):
    """A runtime of functions. ``launch`` blocks while it watches; None: the function reports by itself."""

    def launch(self, invocation: Invocation, watch: Callable[[], Stop | None]) -> Verdict | None: ...


class NoFunctions:
    """Runs no functions: a bundle is code that some writer uploaded, and this process holds an admin's secrets."""

    def __init__(self, reason: str = NO_RUNTIME) -> None:
        self._reason = reason

    def launch(self, invocation: Invocation, watch: Callable[[], Stop | None]) -> Verdict | None:
        return Verdict(Outcome.FATAL, error=self._reason)


class LocalFunctions:
    """Runs functions as processes of this machine. ``offered``: environment variables that a bundle may request."""

    def __init__(
        self,
        store: BundleStore,
        sandbox: Sandbox,
        *,
        data_root: str = "",
        offered: Mapping[str, str] | None = None,
        network: bool = False,
        memory_bytes: int = 0,
    ) -> None:
        self.sandbox = sandbox
        self._store, self._data_root = store, data_root
        self._offered = dict(offered or {})
        self._network, self._memory_bytes = network, memory_bytes

    def launch(self, invocation: Invocation, watch: Callable[[], Stop | None]) -> Verdict | None:
        try:
            body = self._store.read(invocation.bundle_sha256)
        except Unavailable as error:
            return Verdict(Outcome.RETRYABLE, error=str(error))
        except QoError as error:
            return Verdict(Outcome.FATAL, error=str(error))
        document = invocation.model_dump_json().encode()
        conditions = Conditions(
            sandbox=self.sandbox,
            access=access_of(invocation.work, self._data_root, network=self._network),
            offered=self._offered,
            memory_bytes=self._memory_bytes,
        )
        return execution.run(parse_request(document), document, body, conditions, watch)


def access_of(work: Work, data_root: str, *, network: bool) -> Access:
    """Return the directories of this machine that an attempt may see: what its credentials would reach in a bucket.

    Inputs that lie elsewhere stay hidden: a writer could announce any directory as one.
    """
    root = data_root.rstrip("/")
    inputs = {f"{root}/{each.dataset_id}/{each.generation_id}" for each in work.inputs}
    paths = [local_path(each) for each in sorted(inputs) if each.startswith("file:")]
    outputs = [local_path(each.prefix) for each in work.outputs if each.prefix.startswith("file:")]
    return Access(tuple(each for each in paths if each.is_dir()), tuple(outputs), network)
