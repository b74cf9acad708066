"""Which functions a dispatcher runs, and where: as its settings say, and nowhere unless they say so."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping

from qo.api.contract.bundle import Invocation
from qo.api.contract.credential import CredentialsRequest
from qo.config.dispatcher import LocalBundles
from qo.config.settings import Settings
from qo.dispatcher.auth import capability as capabilities
from qo.dispatcher.auth import credentials
from qo.dispatcher.auth.signing_keys import KeyRing
from qo.dispatcher.bundles.bundle_store import BundleStore
from qo.dispatcher.runtimes.containers import NO_ENGINE, ContainerLimits, Containers, memory_bytes
from qo.dispatcher.runtimes.local_functions import NO_SANDBOX, Functions, LocalFunctions, NoFunctions
from qo.dispatcher.state.database import State
from qo.errors import Refused
from qo.function.sandbox import PlainProcess, Sandbox, find_sandbox
from qo.pipeline.registry import Runtime

log = logging.getLogger(__name__)


def choose_functions(settings: Settings, runtime: Runtime, state: State, ring: KeyRing) -> Functions:
    """Return what runs the functions of a runtime."""
    if runtime.works_like == "container":
        return _containers(settings, runtime, state, ring)
    return _bundles(settings, runtime)


def _bundles(settings: Settings, runtime: Runtime) -> Functions:
    config, store = settings.dispatcher, BundleStore(settings)
    if config.lambda_function is not None:
        from qo.dispatcher.aws import FALLBACK_REGION
        from qo.dispatcher.runtimes.aws_lambda import AwsFunctions

        region = settings.s3.region or FALLBACK_REGION
        return AwsFunctions(config.lambda_function, store, region=region, endpoint=config.lambda_endpoint)
    sandbox: Sandbox
    match config.lambda_local:
        case LocalBundles.OFF:
            return NoFunctions()
        case LocalBundles.UNSAFE:
            log.warning("bundles run without a sandbox: every writer can do what the dispatcher's user can")
            sandbox = PlainProcess()
        case LocalBundles.SANDBOX:
            try:
                sandbox = find_sandbox()
            except Refused as error:
                log.warning("bundles cannot run: %s", error)
                return NoFunctions(f"{error}: {NO_SANDBOX}")
            log.info("bundles run in a sandbox of %s", sandbox.name)
    return LocalFunctions(
        store,
        sandbox,
        data_root=config.data_root,
        offered=offered_variables(runtime.env),
        network=bool(runtime.reaches_network),
        memory_bytes=0 if runtime.memory is None else memory_bytes(runtime.memory),
    )


def _containers(settings: Settings, runtime: Runtime, state: State, ring: KeyRing) -> Functions:
    if not runtime.engine:
        return NoFunctions(NO_ENGINE.format(runtime=runtime.name))

    def mint(invocation: Invocation) -> Mapping[str, str]:
        return mint_variables(settings, state, ring, invocation)

    limits = ContainerLimits(
        image=runtime.image,
        memory=runtime.memory,
        cpus=runtime.cpu,
        network=bool(runtime.reaches_network),
        offered=offered_variables(runtime.env),
    )
    return Containers(runtime.engine, limits, data_root=settings.dispatcher.data_root, mint=mint)


def offered_variables(names: Iterable[str]) -> dict[str, str]:
    """Return the named variables of this process, as far as it has them."""
    missing = [each for each in names if each not in os.environ]
    if missing:
        log.warning("the environment lacks %s, which the settings offer to functions", ", ".join(missing))
    return {each: os.environ[each] for each in names if each in os.environ}


def mint_variables(settings: Settings, state: State, ring: KeyRing, invocation: Invocation) -> dict[str, str]:
    """Return credentials for the attempt's prefixes, as the variables that clients of S3 read; none if none are minted.

    Raises what minting raises, except that the attempt has no data in a bucket.
    """
    if settings.dispatcher.role_arn is None or not settings.dispatcher.data_root.startswith("s3://"):
        return {}
    with state.read() as tx:
        capability = capabilities.verify(ring, invocation.capability_token, tx.now)
    fence = CredentialsRequest(
        task_id=invocation.task_id, attempt=invocation.attempt, lease_id=invocation.lease_id
    )
    minted = credentials.mint(state, fence, capability, settings)
    variables = {
        "AWS_ACCESS_KEY_ID": minted.access_key_id,
        "AWS_SECRET_ACCESS_KEY": minted.secret_access_key,
        "AWS_SESSION_TOKEN": minted.session_token,
        "AWS_REGION": minted.region,
    }
    return variables if minted.endpoint is None else variables | {"AWS_ENDPOINT_URL_S3": minted.endpoint}
