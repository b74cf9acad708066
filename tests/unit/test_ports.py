"""Ports of test runs: no two that run beside each other get the same."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.servers.ports import BLOCK, free_ports

pytestmark = pytest.mark.fast

OTHER = "import json; from support.servers import ports; print(json.dumps(ports.free_ports(20)))"


def test_two_processes_get_no_port_in_common() -> None:
    ours = free_ports(BLOCK // 2)
    tests = str(Path(__file__).parents[1])
    other = subprocess.run([sys.executable, "-c", OTHER], cwd=tests, capture_output=True, text=True, check=True)
    assert len(set(ours)) == BLOCK // 2
    assert set(ours).isdisjoint(json.loads(other.stdout))


def test_a_port_that_somebody_listens_on_is_passed_over() -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        assert port not in free_ports(BLOCK - 1)
