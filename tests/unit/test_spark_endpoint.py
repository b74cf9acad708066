"""Where clusters answer."""

from __future__ import annotations

import socket

import pytest

from qo.spark.engine.endpoint import Endpoint, Reach, master_endpoints, probe_any
from support.servers.ports import free_ports

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("spark://a:1", (("a", 1),)),
        ("spark://a", (("a", 7077),)),
        ("spark://a:1,b:2", (("a", 1), ("b", 2))),
        ("spark://[::1]:1", (("::1", 1),)),
        ("k8s://https://h:6443", (("h", 6443),)),
        ("k8s://h", (("h", 443),)),
        ("k8s://http://h", (("h", 80),)),
        ("yarn", ()),
        ("local-cluster[2,1,512]", ()),
    ],
)
def test_a_master_says_where_it_answers(master: str, expected: tuple[Endpoint, ...]) -> None:
    assert master_endpoints(master) == expected


def test_of_several_masters_one_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    (free,) = free_ports(1)
    gone = ("127.0.0.1", free)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        there = ("127.0.0.1", listening.getsockname()[1])
        assert probe_any([gone, there]) is Reach.OPEN
    assert probe_any([gone]) is Reach.REFUSED
    assert probe_any([]) is Reach.UNKNOWN

    def no_answer(endpoint: Endpoint, within_s: float) -> socket.socket:
        raise ConnectionRefusedError if endpoint == gone else TimeoutError

    monkeypatch.setattr(socket, "create_connection", no_answer)
    assert probe_any([gone, ("far", 1)]) is Reach.SILENT
