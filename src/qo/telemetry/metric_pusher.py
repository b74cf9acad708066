"""Pushes the metrics of a process to a collector, from a thread of its own.

What is pushed is what a scrape would get at that moment, so nothing is counted twice. All counts are since the start of
the process: a push that fails loses nothing but its moment.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from qo.telemetry.otlp import Window, encode_metrics

log = logging.getLogger(__name__)

TIMEOUT_S = 10.0
STOP_S = 2.0  # For the last push: a process that ends does not wait for a collector that is away.


class MetricPusher:
    """``exposition`` returns the metrics in the Prometheus text format; the pusher's thread calls it."""

    def __init__(
        self,
        url: str,
        *,
        service: str,
        exposition: Callable[[], bytes],
        instance: str | None = None,
        headers: Mapping[str, str] | None = None,
        interval_s: float = 60.0,
    ) -> None:
        self._url, self._interval_s, self._exposition = url, interval_s, exposition
        self._headers = {"Content-Type": "application/x-protobuf", **(headers or {})}
        self._resource = {
            "service.name": os.environ.get("OTEL_SERVICE_NAME") or service,
            "service.instance.id": instance or f"{socket.gethostname()}-{os.getpid()}",
        }
        self._start_ns = _now_ns()
        self._stop = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="qo-metric-push", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Push once more, and end."""
        self._stop.set()
        self._thread.join(STOP_S)

    def push(self) -> bool:
        """Push once; return whether the collector took it. Never raises: metrics must not fail what they describe."""
        try:
            text = self._exposition().decode()
            body = encode_metrics(text, self._resource, Window(self._start_ns, _now_ns()))
            request = urllib.request.Request(self._url, data=body, headers=self._headers, method="POST")
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                pass
        except Exception as error:
            if not self._failing:  # Once, until it works again.
                log.warning("metrics could not be pushed to %s, trying again: %s", self._url, error)
            self._failing = True
            return False
        if self._failing:
            log.info("metrics are pushed to %s again", self._url)
        self._failing = False
        return True

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.push()
        self.push()


@contextmanager
def pushed_metrics(
    url: str | None,
    *,
    service: str,
    exposition: Callable[[], bytes],
    instance: str | None = None,
    headers: Mapping[str, str] | None = None,
    interval_s: float = 60.0,
) -> Generator[None]:
    """Push metrics within the context; without a URL, nothing happens."""
    if url is None:
        yield
        return
    pusher = MetricPusher(
        url, service=service, exposition=exposition, instance=instance, headers=headers, interval_s=interval_s
    )
    pusher.start()
    try:
        yield
    finally:
        pusher.stop()


def _now_ns() -> int:
    return time.time_ns()  # noqa: TID251 - for people who look at curves; nothing is decided by it.
