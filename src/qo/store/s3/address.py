"""The address of a bucket, in the parts that sending and signing a request need."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from qo.errors import ConfigError

DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    origin: str  # Scheme, host and port: "https://name.s3.eu-west-1.amazonaws.com".
    host: str  # As in the Host header, which is signed.
    root: str  # The bucket's path below the origin, without a final slash.
    bucket: str
    region: str

    def path(self, key: str) -> str:
        """Return the encoded path of an object; of the bucket itself for the empty key."""
        if not key:
            return self.root or "/"
        return f"{self.root}/{encode_path(key)}"

    def __str__(self) -> str:
        return f"bucket {self.bucket!r} at {self.origin}"


def encode_path(text: str) -> str:
    """Percent-encode a path as signatures require: everything but unreserved characters and slashes."""
    return quote(text, safe="/-_.~")


def query(**arguments: str) -> str:
    """Build a query string, encoded and sorted as signatures require. Underscores in names stand for dashes."""
    pairs = sorted((name.replace("_", "-"), quote(value, safe="-_.~")) for name, value in arguments.items())
    return "&".join(f"{name}={value}" for name, value in pairs)


def bucket_address(bucket: str, *, endpoint: str | None, region: str) -> Address:
    """Return the address of a bucket. A custom endpoint gets the bucket in the path, which every server supports; AWS
    in the host name, unless the name has a dot, which would not match the certificate."""
    if endpoint is None:
        suffix = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        host = f"s3.{region}.{suffix}"
        if "." not in bucket:
            return Address(f"https://{bucket}.{host}", f"{bucket}.{host}", "", bucket, region)
        return Address(f"https://{host}", host, f"/{bucket}", bucket, region)
    parts = urlsplit(endpoint)
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or parts.query:
        raise ConfigError(
            f"S3 endpoint {endpoint!r} is not a URL such as http://127.0.0.1:8333 or https://s3.example.com"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if parts.port is not None and parts.port != DEFAULT_PORTS[parts.scheme]:
        host = f"{host}:{parts.port}"
    return Address(f"{parts.scheme}://{host}", host, f"{parts.path.rstrip('/')}/{bucket}", bucket, region)
