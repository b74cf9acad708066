"""Routes for bundles of code: register, upload, finalize, list."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Request

from qo.api.contract.bundle import BundleAnswer, BundleList, CreateBundle
from qo.core.pipeline.bundle import ZIP_BYTES_MAX
from qo.dispatcher.bundles import bundle_store
from qo.dispatcher.bundles.bundle_store import BundleStore
from qo.dispatcher.http.routes import After, CallerParam, ContextParam, Limit, Routes

UPLOADS = "/v1/bundles/"  # Bodies below this path may be as large as a bundle.
BYTES_MAX = ZIP_BYTES_MAX

BundleId = Annotated[str, Path(max_length=36)]


def create_bundle(context: ContextParam, caller: CallerParam, body: CreateBundle) -> BundleAnswer:
    """Register a bundle by its hash; the answer says where to upload it."""
    store = BundleStore(context.settings)
    present = store.has(body.sha256)  # Outside the transaction: a bucket is slow.
    with context.state.write() as tx:
        return bundle_store.register(tx, body, caller.name, store, present=present)


def list_bundles(context: ContextParam, after: After = None, limit: Limit = 100) -> BundleList:
    """List the bundles of functions, newest first."""
    with context.state.read() as tx:
        return bundle_store.list_functions(tx, after, limit)


def show_bundle(context: ContextParam, bundle_id: BundleId) -> BundleAnswer:
    """Show the state of a bundle."""
    with context.state.read() as tx:
        return bundle_store.show(tx, bundle_id)


async def _read_zip(request: Request) -> bytes:
    return await request.body()


def upload_bundle(
    context: ContextParam, bundle_id: BundleId, body: Annotated[bytes, Depends(_read_zip)]
) -> BundleAnswer:
    """Upload the zip of a registered bundle, if the answer named no upload_url."""
    return bundle_store.upload(context.state, BundleStore(context.settings), bundle_id, body)


def finalize_bundle(context: ContextParam, bundle_id: BundleId) -> BundleAnswer:
    """Check an uploaded bundle; if it is valid, jobs may use it."""
    return bundle_store.finalize(context.state, BundleStore(context.settings), bundle_id)


_ZIP: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def install(routes: Routes) -> None:
    routes.post("/v1/bundles", create_bundle)
    routes.get("/v1/bundles", list_bundles, 404)
    routes.get("/v1/bundles/{bundle_id}", show_bundle, 404)
    routes.put("/v1/bundles/{bundle_id}", upload_bundle, 404, extra=_ZIP)
    routes.post("/v1/bundles/{bundle_id}/finalize", finalize_bundle, 404)
