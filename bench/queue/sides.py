"""qo and buquet on one S3 server: fill a fresh bucket, drain it, and count what that took."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Self

from bench.process import run, run_all

if TYPE_CHECKING:
    from support.servers.s3 import S3Server

CONCURRENCY = 64
BUQUET_VERSION = version("buquet")

Answer = dict[str, Any]


@dataclass(frozen=True)
class Side(ABC):
    """One contestant in a bucket of its own. ``endpoint`` may be a proxy's."""

    server: S3Server
    bucket: str
    endpoint: str

    @classmethod
    def fresh(cls, server: S3Server, endpoint: str | None = None) -> Self:
        return cls(server, server.make_bucket(), endpoint or server.endpoint)

    @abstractmethod
    def job(self) -> Answer:
        """What every job for a process of this contestant says."""

    @abstractmethod
    def enqueue(self, tasks: int) -> Answer: ...

    @abstractmethod
    def drain(self, tasks: int, workers: int = 1) -> list[Answer]:
        """The answers of the workers, which complete ``tasks`` between them."""

    def environment(self) -> Mapping[str, str]:
        return {**self.server.environment(self.bucket), "S3_ENDPOINT": self.endpoint}


class Qo(Side):
    def job(self) -> Answer:
        return {"settings": {"store": f"s3://{self.bucket}", "s3.endpoint": self.endpoint}}

    def enqueue(self, tasks: int) -> Answer:
        job = {**self.job(), "do": "enqueue", "tasks": tasks, "way": "submit_many", "task_type": "noop"}
        return run("bench.peers.qo", job, self.environment())

    def drain(self, tasks: int, workers: int = 1) -> list[Answer]:
        job = {**self.job(), "do": "drain", "worker": {"concurrency": CONCURRENCY}}
        jobs = [{**job, "worker_id": f"bench-{number}"} for number in range(workers)]
        answers = run_all("bench.peers.qo", jobs, self.environment())
        if (completed := sum(answer["completed"] for answer in answers)) != tasks:
            raise RuntimeError(f"{completed} of {tasks} tasks were completed")
        return answers


class Buquet(Side):
    def job(self) -> Answer:
        return {"endpoint": self.endpoint, "bucket": self.bucket, "region": self.server.region}

    def enqueue(self, tasks: int) -> Answer:
        return run("bench.peers.buquet", {**self.job(), "do": "enqueue", "tasks": tasks}, self.environment())

    def drain(self, tasks: int, workers: int = 1) -> list[Answer]:
        # A worker of buquet stops after a number of tasks only: each gets its share.
        job = {**self.job(), "do": "drain", "tasks": tasks // workers}
        jobs = [{**job, "worker_id": f"bench-{number}"} for number in range(workers)]
        return run_all("bench.peers.buquet", jobs, self.environment())
