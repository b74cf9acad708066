"""Real S3 servers on loopback: SeaweedFS, which tests and benchmarks run on, and moto as a second opinion.

A server dies with the process that started it. (On Linux, to be exact, with the thread that did: start servers
from the main thread.) Several can run at once; each takes free ports and a directory of its own.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from qo.store.s3 import Credentials, S3Store
from support.servers.ports import free_ports

READY_WITHIN_S = 30.0
ACCESS_KEY, SECRET_KEY, REGION = "test-access-key", "test-secret-key", "us-east-1"
SEAWEED_PORTS = [
    f"{part}.port{kind}" for part in ("master", "volume", "filer", "s3", "admin") for kind in ("", ".grpc")
]

# Asks the kernel for the end of the child when its parent ends, then becomes the server.
LAUNCH = """
import ctypes, os, signal, sys
if hasattr(libc := ctypes.CDLL(None), "prctl"):
    libc.prctl(1, signal.SIGKILL)
os.execv(sys.argv[1], sys.argv[1:])
"""

_bucket_numbers = itertools.count(1)


class Held(Protocol):
    """Credentials for a while, as qo mints them."""

    access_key_id: str
    secret_access_key: str
    session_token: str | None


def client_of(held: Held, endpoint: str | None, region: str) -> Any:
    """What boto3 can do with them."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id=held.access_key_id,
        aws_secret_access_key=held.secret_access_key,
        aws_session_token=held.session_token,
        config=Config(retries={"total_max_attempts": 1}),
    )


def is_refused(ask: Callable[[], Any]) -> bool:
    try:
        ask()
    except ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"] in (400, 403)
    return False


@dataclass
class S3Server:
    endpoint: str
    command: Sequence[str]
    log: Path
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY
    region: str = REGION
    ready_within_s: float = READY_WITHIN_S
    litter: Sequence[str] = ()  # Files outside its directory that the server leaves behind.
    process: subprocess.Popen[bytes] = field(init=False)
    admin: Any = field(init=False)  # A boto3 client: set-up should not depend on the code under test.

    def __post_init__(self) -> None:
        self.admin = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=self.region,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=10),
        )
        self.start()

    def start(self) -> None:
        """Start the server, or start it again on what it had stored; returns when it takes writes."""
        environment = {
            **os.environ,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", LAUNCH, *self.command], env=environment, stdout=log, stderr=log
            )
        deadline = time.monotonic() + self.ready_within_s
        while not self._takes_writes():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{self.command[0]} did not start: {self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def kill(self) -> None:
        """As kill -9 does."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.kill()
        self.admin.close()
        for path in self.litter:
            Path(path).unlink(missing_ok=True)

    def make_bucket(self, *, versioned: bool = True) -> str:
        bucket = f"qo-test-{os.getpid()}-{next(_bucket_numbers)}"
        self.admin.create_bucket(Bucket=bucket)
        if versioned:
            self.admin.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        return bucket

    async def open_store(self, bucket: str, *, endpoint: str | None = None, prefix: str = "") -> S3Store:
        """A store on the bucket, by way of another endpoint (a proxy) if one is given."""
        credentials = Credentials(self.access_key, self.secret_key)
        return await S3Store.open(
            bucket, endpoint=endpoint or self.endpoint, region=self.region, credentials=credentials, prefix=prefix
        )

    def environment(self, bucket: str) -> dict[str, str]:
        """The variables that lead qo to this bucket."""
        return {
            "S3_ENDPOINT": self.endpoint,
            "S3_BUCKET": bucket,
            "S3_REGION": self.region,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
        }

    def _takes_writes(self) -> bool:
        try:
            self.admin.create_bucket(Bucket="ready")
        except self.admin.exceptions.BucketAlreadyOwnedByYou:
            pass
        except (BotoCoreError, ClientError):
            return False
        try:
            self.admin.put_object(Bucket="ready", Key="ready", Body=b"yes")
        except (BotoCoreError, ClientError):
            return False
        return True


def start_seaweed(directory: Path, *more: str) -> S3Server:
    """A SeaweedFS server that keeps its data and logs in the directory. ``more``: further options of it."""
    directory.mkdir(parents=True, exist_ok=True)
    ports = dict(zip(SEAWEED_PORTS, free_ports(len(SEAWEED_PORTS)), strict=True))
    command = [
        str(Path(sys.executable).with_name("weed")),
        f"-logdir={directory}",
        "mini",
        f"-dir={directory}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        *(f"-{name}={port}" for name, port in ports.items()),
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-volume.max=5000",  # Each bucket takes several; the default is what the free disk space would allow.
        "-s3.autoCreateBucket=false",  # As on AWS, a missing bucket is an error.
        "-admin.ui=false",
        "-webdav=false",
        "-master.telemetry=false",
        *more,
    ]
    return S3Server(
        endpoint=f"http://127.0.0.1:{ports['s3.port']}",
        command=command,
        log=directory / "server.log",
        litter=[
            f"{tempfile.gettempdir()}/seaweedfs-{name.replace('.port', '').replace('.', '-')}-{port}.sock"
            for name, port in ports.items()
        ],
    )


def start_moto(directory: Path) -> S3Server:
    """A moto server. It keeps everything in memory and believes any credentials."""
    directory.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    return S3Server(
        endpoint=f"http://127.0.0.1:{port}",
        command=[str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(port)],
        log=directory / "server.log",
    )
