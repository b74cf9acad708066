"""Bundles: registered by hash, uploaded, validated once, and stored beside the data.

The id of a bundle is derived from its hash, so a job that names a bundle names exactly these bytes.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import msgspec
import sqlalchemy as sa

from qo.api.contract.bundle import BundleAnswer, BundleList, CreateBundle
from qo.config.settings import Settings
from qo.core.pipeline.bundle import SHA256, ZIP_BYTES_MAX, Manifest
from qo.core.pipeline.plan import derive_id
from qo.core.pipeline.states import BundleState
from qo.dispatcher import aws
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, Tx
from qo.errors import NoSuchBucket, NotFound, Refused, StoreError, Unavailable, UsageError
from qo.function import archive
from qo.store.blocking_files import BlockingFiles

DIRECTORY = "bundles"  # Below the data root.
URL_S = 900  # How long a pre-signed URL is valid.

_bundles = schema.bundles


def location_of(data_root: str, sha256: str) -> str:
    """Return the URI of a bundle below the data root of the settings."""
    return f"{data_root.rstrip('/')}/{DIRECTORY}/{_name(sha256)}"


class BundleStore:
    """Where bundles are stored. All methods block. They raise Unavailable if a retry may help, NotFound or Refused
    otherwise."""

    def __init__(self, settings: Settings) -> None:
        self._data_root = settings.dispatcher.data_root
        self._s3 = settings.s3
        self._files = BlockingFiles(settings)

    def location(self, sha256: str) -> str:
        return location_of(self._data_root, sha256)

    def read(self, sha256: str) -> bytes:
        try:
            with _translate_errors():
                return self._files.read(self.location(sha256), bytes_max=ZIP_BYTES_MAX)
        except NotFound:
            raise NotFound(f"the bundle {sha256} is not at {self.location(sha256)}: upload it") from None
        except OSError as error:
            raise Unavailable(f"the bundle {sha256} cannot be read: {error.strerror}") from None

    def has(self, sha256: str) -> bool:
        with _translate_errors():
            return self._files.exists(self.location(sha256))

    def write(self, sha256: str, body: bytes) -> None:
        with _translate_errors():
            self._files.write(self.location(sha256), body)

    def get_url(self, sha256: str) -> str | None:
        """Return a link that reads the bundle without credentials for a while; None if it is not in a bucket."""
        return self._presigned("get_object", sha256)

    def put_url(self, sha256: str) -> str | None:
        """Return a link that uploads the bundle without credentials for a while; None if it is not for a bucket."""
        return self._presigned("put_object", sha256)

    def _presigned(self, call: str, sha256: str) -> str | None:
        location = self.location(sha256)
        if not location.startswith("s3://"):
            return None
        bucket, _, key = location.removeprefix("s3://").partition("/")
        client = aws.client("s3", self._s3.region or aws.FALLBACK_REGION, self._s3.endpoint)
        return client.generate_presigned_url(call, Params={"Bucket": bucket, "Key": key}, ExpiresIn=URL_S)


@contextmanager
def _translate_errors() -> Generator[None]:
    """Translate the errors of a bucket into those that ``BundleStore`` raises."""
    try:
        yield
    except Unavailable:
        raise
    except NoSuchBucket as error:
        raise NotFound(str(error)) from None
    except StoreError as error:
        raise Refused(f"the bucket of the bundles refuses: {error}") from None


def register(tx: Tx, request: CreateBundle, by: str, store: BundleStore, *, present: bool = True) -> BundleAnswer:
    """Register a bundle. Registering it again changes nothing and returns its state.

    ``present``: whether its zip is in the store, if it was ever uploaded.
    """
    row = {
        "id": bundle_id_for(request.sha256),
        "sha256": request.sha256,
        "location": store.location(request.sha256),
        "state": BundleState.UPLOADING,
        "manifest": None,
        "created_at": tx.now,
        "created_by": by,
    }
    tx.insert_absent(_bundles, [row], returning=_bundles.c.id)
    bundle = show(tx, bundle_id_for(request.sha256))
    if bundle.state == BundleState.FINAL:
        if present:
            return bundle
        # Somebody has deleted the zip: let the caller upload the same bytes again.
        tx.execute(
            sa.update(_bundles).where(_bundles.c.id == bundle.bundle_id).values(state=BundleState.UPLOADING)
        )
        bundle = bundle.model_copy(update={"state": BundleState.UPLOADING})
    return bundle.model_copy(update={"upload_url": store.put_url(request.sha256)})


def upload(state: State, store: BundleStore, bundle_id: str, body: bytes) -> BundleAnswer:
    """Store the zip of a registered bundle. Raises NotFound, UsageError for bytes with another hash."""
    with state.read() as tx:
        bundle = show(tx, bundle_id)
    archive.check_hash(body, bundle.sha256)
    store.write(bundle.sha256, body)
    return bundle


def finalize(state: State, store: BundleStore, bundle_id: str) -> BundleAnswer:
    """Validate the uploaded zip and let jobs use it. Raises NotFound, UsageError, Unavailable."""
    with state.read() as tx:
        bundle = show(tx, bundle_id)
    if bundle.state == BundleState.FINAL:
        return bundle
    manifest = archive.inspect(store.read(bundle.sha256), bundle.sha256)
    with state.write() as tx:
        values = {"state": BundleState.FINAL, "manifest": msgspec.to_builtins(manifest)}
        tx.execute(sa.update(_bundles).where(_bundles.c.id == bundle_id).values(**values))
        return show(tx, bundle_id)


def show(tx: Tx, bundle_id: str) -> BundleAnswer:
    """Raises NotFound."""
    row = tx.one(sa.select(_bundles).where(_bundles.c.id == bundle_id))
    if row is None:
        raise NotFound(f"there is no bundle {bundle_id!r}: register it first")
    return _answer(row)


def list_functions(tx: Tx, after: str | None, limit: int) -> BundleList:
    """List the bundles of functions, and those that were not finalized, newest first.

    The code of pipelines is not listed. Raises NotFound for ``after`` that is no bundle.
    """
    query = sa.select(_bundles).order_by(_bundles.c.created_at.desc(), _bundles.c.id.desc())
    if after is not None:
        last = tx.one(sa.select(_bundles.c.created_at).where(_bundles.c.id == after))
        if last is None:
            raise NotFound(f"there is no bundle {after!r} to continue after: list from the beginning")
        at = last["created_at"]
        query = query.where(
            sa.or_(_bundles.c.created_at < at, sa.and_(_bundles.c.created_at == at, _bundles.c.id < after))
        )
    # A manifest is JSON, which the two databases search differently, and bundles are few.
    bundles: list[BundleAnswer] = []
    for row in tx.all(query):
        if row["manifest"] is not None and row["manifest"]["runtime"] == "pipeline":
            continue
        if len(bundles) == limit:
            return BundleList(bundles=bundles, next=bundles[-1].bundle_id)
        bundles.append(_answer(row))
    return BundleList(bundles=bundles)


def _answer(row: sa.RowMapping) -> BundleAnswer:
    manifest = None if row["manifest"] is None else msgspec.convert(row["manifest"], Manifest)
    return BundleAnswer(
        bundle_id=row["id"],
        sha256=row["sha256"],
        state=row["state"],
        created_at=row["created_at"],
        created_by=row["created_by"],
        name=None if manifest is None else manifest.name,
        runtime=None if manifest is None else manifest.runtime,
        entrypoint=None if manifest is None else manifest.entrypoint,
        files=None if manifest is None else len(manifest.files),
        env_allowlist=[] if manifest is None else list(manifest.env_allowlist),
    )


def usable(tx: Tx, bundle_id: str) -> BundleAnswer:
    """Return a bundle that tasks may run. Raises NotFound, Refused for one that was never finalized."""
    bundle = show(tx, bundle_id)
    if bundle.state != BundleState.FINAL:
        raise Refused(f"the bundle {bundle_id} was not finalized: upload and finalize it, then replay the task")
    if bundle.runtime == "pipeline":
        raise Refused(f"the bundle {bundle_id} is the code of a pipeline, not a function: name another in 'udf'")
    return bundle


def deployable(tx: Tx, sha256: str) -> str:
    """Return the location of a finalized bundle of pipeline code. Raises UsageError."""
    row = tx.one(sa.select(_bundles).where(_bundles.c.sha256 == sha256))
    if row is None or row["state"] != BundleState.FINAL:
        raise UsageError(f"the bundle {sha256} was not uploaded and finalized: send it to /v1/bundles first")
    if row["manifest"]["runtime"] != "pipeline":
        raise UsageError(f"the bundle {sha256} is a function: a version names the bundle of a pipeline")
    return str(row["location"])


def bundle_id_for(sha256: str) -> str:
    return derive_id("bundle", sha256)


def _name(sha256: str) -> str:
    if not SHA256.match(sha256):
        raise UsageError(f"{sha256[:100]!r} is not a sha256")  # It becomes part of a path.
    return f"{sha256}.zip"
