"""Deployment of a pipeline: first the code of its jobs, then the version that names the code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qo.errors import NotFound

if TYPE_CHECKING:
    from qo.api.public_client import UserClient
    from qo.pipeline.code.bundling import Bundle


async def deploy_version(
    client: UserClient, dag: str, source: str, bundle: Bundle | None, **options: Any
) -> dict[str, Any]:
    """Deploy a version and return the dispatcher's answer. ``options``: further fields of the request.

    May be repeated at any point: a bundle is identified by its hash, a version by its content.
    """
    request: dict[str, Any] = {"source": source, **options}
    if bundle is not None:
        await upload_bundle(client, bundle.sha256, bundle.body)
        request["bundle"] = {"sha256": bundle.sha256, "jobs": list(bundle.jobs)}
    return await client.post(f"/v1/dags/{dag}/versions", request)


async def upload_bundle(client: UserClient, sha256: str, body: bytes) -> dict[str, Any]:
    """Upload the zip of a bundle, unless the dispatcher has it, and return the dispatcher's description."""
    registered = await client.post("/v1/bundles", {"sha256": sha256, "bytes": len(body)})
    if registered["state"] == "final":
        return registered
    path = f"/v1/bundles/{registered['bundle_id']}"
    await client.put(path, body)
    try:
        return await client.post(f"{path}/finalize")
    except NotFound:
        # A garbage collection has removed it in the meantime.
        await client.put(path, body)
        return await client.post(f"{path}/finalize")
