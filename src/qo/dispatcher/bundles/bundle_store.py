"""Bundles: registered by hash, uploaded, read once to see that they are sound, and kept beside the data.

A bundle's id follows from its hash, so a job that names it names those bytes, and no later upload changes them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import msgspec
import sqlalchemy as sa

from qo.api.contract.bundle import BundleAnswer, CreateBundle
from qo.config.settings import Settings
from qo.core.pipeline.bundle import SHA256, ZIP_BYTES_MAX, Manifest
from qo.core.pipeline.plan import derived
from qo.dispatcher import aws
from qo.dispatcher.bundles import archive
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, Tx
from qo.errors import NotFound, Refused, Unavailable, UsageError
from qo.store.secret_files import draw

DIRECTORY = "bundles"  # Below the data root.
URL_S = 900  # For so long a pre-signed URL is good.

_bundles = schema.bundles


class Shelf(Protocol):
    """Where bundles are kept. Blocks. Raises NotFound and Refused for good, Unavailable for now."""

    def read(self, sha256: str) -> bytes: ...

    def write(self, sha256: str, body: bytes) -> None: ...

    def has(self, sha256: str) -> bool: ...

    def location(self, sha256: str) -> str: ...

    def get_url(self, sha256: str) -> str | None:
        """Where somebody without credentials can fetch it for a while; None: nowhere."""
        ...

    def put_url(self, sha256: str) -> str | None: ...


def location_of(data_root: str, sha256: str) -> str:
    """Where the bundle of that hash lies, by the data root of the settings."""
    return f"{data_root.rstrip('/')}/{DIRECTORY}/{_name(sha256)}"


def shelf_of(settings: Settings) -> Shelf:
    """In the data root of the settings."""
    data = settings.dispatcher.data_root
    if data.startswith("s3://"):
        return BucketShelf(data, settings.s3.region or aws.FALLBACK_REGION, settings.s3.endpoint)
    return FileShelf(Path(data.removeprefix("file:").removeprefix("//")))


class FileShelf:
    def __init__(self, root: Path) -> None:
        self._directory = root / DIRECTORY

    def location(self, sha256: str) -> str:
        return f"file:{self._path(sha256)}"

    def read(self, sha256: str) -> bytes:
        try:
            with self._path(sha256).open("rb") as file:
                return file.read(ZIP_BYTES_MAX + 1)
        except FileNotFoundError:
            raise NotFound(f"the bundle {sha256} is not in {self._directory}: upload it") from None
        except OSError as error:
            raise Unavailable(f"the bundle {sha256} cannot be read: {error.strerror}") from None

    def has(self, sha256: str) -> bool:
        return self._path(sha256).is_file()

    def write(self, sha256: str, body: bytes) -> None:
        path = self._path(sha256)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(draw(f".{sha256}."))
        draft.write_bytes(body)
        draft.replace(path)  # Whole or not at all; the same bytes whoever wins.

    def get_url(self, sha256: str) -> str | None:
        return None

    def put_url(self, sha256: str) -> str | None:
        return None

    def _path(self, sha256: str) -> Path:
        return self._directory / _name(sha256)


class BucketShelf:
    def __init__(self, data: str, region: str, endpoint: str | None) -> None:
        self._bucket, _, root = data.removeprefix("s3://").partition("/")
        self._prefix = f"{root.strip('/')}/{DIRECTORY}/".lstrip("/")
        self._region, self._endpoint = region, endpoint

    def location(self, sha256: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{_name(sha256)}"

    def read(self, sha256: str) -> bytes:
        with aws.asking("the bucket of the bundles"):
            return self._client().get_object(**self._object(sha256))["Body"].read(ZIP_BYTES_MAX + 1)

    def has(self, sha256: str) -> bool:
        with aws.asking("the bucket of the bundles"):
            listed = self._client().list_objects_v2(
                Bucket=self._bucket, Prefix=self._prefix + _name(sha256), MaxKeys=1
            )
            return bool(listed.get("Contents"))

    def write(self, sha256: str, body: bytes) -> None:
        with aws.asking("the bucket of the bundles"):
            self._client().put_object(**self._object(sha256), Body=body)

    def get_url(self, sha256: str) -> str | None:
        return self._presigned("get_object", sha256)

    def put_url(self, sha256: str) -> str | None:
        return self._presigned("put_object", sha256)

    def _presigned(self, call: str, sha256: str) -> str:
        return self._client().generate_presigned_url(call, Params=self._object(sha256), ExpiresIn=URL_S)

    def _object(self, sha256: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": f"{self._prefix}{_name(sha256)}"}

    def _client(self) -> Any:
        return aws.client("s3", self._region, self._endpoint)


def register(tx: Tx, wanted: CreateBundle, by: str, shelf: Shelf, *, present: bool = True) -> BundleAnswer:
    """Announce a bundle. Announcing it again changes nothing, and says how far it is.

    ``present``: whether its zip is on the shelf now, if it ever was.
    """
    row = {
        "id": bundle_id(wanted.sha256),
        "sha256": wanted.sha256,
        "location": shelf.location(wanted.sha256),
        "state": "uploading",
        "manifest": None,
        "created_at": tx.now,
        "created_by": by,
    }
    tx.insert_absent(_bundles, [row], returning=_bundles.c.id)
    found = show(tx, bundle_id(wanted.sha256))
    if found.state == "final":
        if present:
            return found
        # Somebody has deleted it: whoever has the same bytes may bring it back.
        tx.execute(sa.update(_bundles).where(_bundles.c.id == found.bundle_id).values(state="uploading"))
        found = found.model_copy(update={"state": "uploading"})
    return found.model_copy(update={"upload_url": shelf.put_url(wanted.sha256)})


def upload(state: State, shelf: Shelf, bundle: str, body: bytes) -> BundleAnswer:
    """Keep the zip of a registered bundle. Raises NotFound, UsageError for other bytes than were announced."""
    with state.read() as tx:
        found = show(tx, bundle)
    archive.check_hash(body, found.sha256)
    shelf.write(found.sha256, body)
    return found


def finalize(state: State, shelf: Shelf, bundle: str) -> BundleAnswer:
    """Read the uploaded zip and, if it is sound, let jobs use it. Raises NotFound, UsageError, Unavailable."""
    with state.read() as tx:
        found = show(tx, bundle)
    if found.state == "final":
        return found
    manifest = archive.inspect(shelf.read(found.sha256), found.sha256)
    with state.write() as tx:
        values = {"state": "final", "manifest": msgspec.to_builtins(manifest)}
        tx.execute(sa.update(_bundles).where(_bundles.c.id == bundle).values(**values))
        return show(tx, bundle)


def show(tx: Tx, bundle: str) -> BundleAnswer:
    """Raises NotFound."""
    row = tx.one(sa.select(_bundles).where(_bundles.c.id == bundle))
    if row is None:
        raise NotFound(f"there is no bundle {bundle!r}: register it first")
    manifest = None if row["manifest"] is None else msgspec.convert(row["manifest"], Manifest)
    return BundleAnswer(
        bundle_id=row["id"],
        sha256=row["sha256"],
        state=row["state"],
        created_at=row["created_at"],
        created_by=row["created_by"],
        runtime=None if manifest is None else manifest.runtime,
        entrypoint=None if manifest is None else manifest.entrypoint,
        files=None if manifest is None else len(manifest.files),
    )


def usable(tx: Tx, bundle: str) -> BundleAnswer:
    """A bundle that may run. Raises NotFound, Refused for one that was never finalized."""
    found = show(tx, bundle)
    if found.state != "final":
        raise Refused(f"the bundle {bundle} was not finalized: upload and finalize it, then replay the task")
    if found.runtime == "pipeline":
        raise Refused(f"the bundle {bundle} is the code of a pipeline, not a function: name another in 'udf'")
    return found


def deployable(tx: Tx, sha256: str) -> str:
    """Where the code of a pipeline lies that was uploaded and found sound. Raises UsageError."""
    row = tx.one(sa.select(_bundles).where(_bundles.c.sha256 == sha256))
    if row is None or row["state"] != "final":
        raise UsageError(f"the bundle {sha256} was not uploaded and finalized: send it to /v1/bundles first")
    if row["manifest"]["runtime"] != "pipeline":
        raise UsageError(f"the bundle {sha256} is a function: a version names the bundle of a pipeline")
    return str(row["location"])


def bundle_id(sha256: str) -> str:
    return derived("bundle", sha256)


def _name(sha256: str) -> str:
    if not SHA256.match(sha256):
        raise UsageError(f"{sha256[:100]!r} is not a sha256")  # It becomes part of a path.
    return f"{sha256}.zip"
