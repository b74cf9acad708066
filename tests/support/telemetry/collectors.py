"""A collector of OTLP metrics: a real HTTP server that decodes what it is sent with Google's protobuf."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# The messages of opentelemetry/proto/metrics/v1 that metrics need: field, number, type; * for repeated.
_MESSAGES = {
    "AnyValue": "string_value 1 string",
    "KeyValue": "key 1 string, value 2 AnyValue",
    "Resource": "attributes 1 KeyValue*",
    "Scope": "name 1 string",
    "NumberPoint": "attributes 7 KeyValue*, start_time_unix_nano 2 fixed64, time_unix_nano 3 fixed64, "
    "as_double 4 double",
    "HistogramPoint": "attributes 9 KeyValue*, start_time_unix_nano 2 fixed64, time_unix_nano 3 fixed64, "
    "count 4 fixed64, sum 5 double, bucket_counts 6 fixed64*, explicit_bounds 7 double*",
    "Gauge": "data_points 1 NumberPoint*",
    "Sum": "data_points 1 NumberPoint*, aggregation_temporality 2 int32, is_monotonic 3 bool",
    "Histogram": "data_points 1 HistogramPoint*, aggregation_temporality 2 int32",
    "Metric": "name 1 string, description 2 string, gauge 5 Gauge, sum 7 Sum, histogram 9 Histogram",
    "ScopeMetrics": "scope 1 Scope, metrics 2 Metric*",
    "ResourceMetrics": "resource 1 Resource, scope_metrics 2 ScopeMetrics*",
    "Request": "resource_metrics 1 ResourceMetrics*",
}


@cache
def _request_type() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="otlp_of_tests.proto", package="t", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in fields.split(", "):
            label, number, kind = text.split()
            made = message.field.add(name=label, number=int(number))
            made.label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
            plain = kind.rstrip("*")
            if plain in _MESSAGES:
                made.type, made.type_name = kinds.TYPE_MESSAGE, f".t.{plain}"
            else:
                made.type = getattr(kinds, f"TYPE_{plain.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Request"))


def decode(body: bytes) -> Any:
    """Decode an export request. Raises DecodeError."""
    request = _request_type()()
    request.ParseFromString(body)
    return request


@dataclass
class Collector:
    url: str
    requests: list[Any] = field(default_factory=list[Any])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    received: threading.Event = field(default_factory=threading.Event)

    def metrics(self) -> dict[str, Any]:
        """The metrics of the last request, by name."""
        (resource,) = self.requests[-1].resource_metrics
        (scope,) = resource.scope_metrics
        return {each.name: each for each in scope.metrics}

    def resource(self) -> dict[str, str]:
        (resource,) = self.requests[-1].resource_metrics
        return {each.key: each.value.string_value for each in resource.resource.attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.headers.append({**dict(self.headers), "path": self.path})
            collector.requests.append(decode(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            collector.received.set()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
