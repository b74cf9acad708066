"""Push: which worker to wake for a task, and how a wake-up is signed.

A wake-up is a hint. One that is lost, late, doubled or refused delays a task until a worker polls, and no more.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

IDS_MAX = 64  # In one wake-up.
BODY_BYTES_MAX = 4096
TOKEN_CHARS_MIN = 16
SCHEME = "Qo-Push"

_AUTHORIZATION = re.compile(rf"{SCHEME} digest=([0-9a-f]{{64}}), signature=([0-9a-f]{{64}})\Z")
# Without the zone of an IPv6 address: a text of any kind, which would become part of the request's head.
_ADDRESS = re.compile(r"([0-9.]{7,15}|\[[0-9A-Fa-f:.]{2,45}\]):([0-9]{1,5})\Z")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Target:
    """A worker that takes wake-ups, as it has reported itself."""

    worker_id: str
    address: str  # "host:port"
    free: int  # Slots without a task.
    task_types: frozenset[str]
    units: frozenset[str] | None  # The shards that it takes tasks of; None: all.
    place: int = 0  # Of this queue among those of its process, which share the address.

    def takes(self, task_type: str, unit: str) -> bool:
        return task_type in self.task_types and (self.units is None or unit in self.units)


def choose(targets: Sequence[Target], task_type: str, unit: str, chance: float) -> Target | None:
    """Choose a worker for a task, at random and in proportion to its free slots; None if none takes it.

    ``chance`` is a number in [0, 1). A worker without a free slot is chosen only if no other is left: its report may
    be old.
    """
    able = [each for each in targets if each.takes(task_type, unit)]
    free = [each for each in able if each.free > 0]
    if not able:
        return None
    if not free:
        return able[int(chance * len(able))]
    point = chance * sum(each.free for each in free)
    for each in free:
        point -= each.free
        if point < 0:
            return each
    return free[-1]


def sign(token: str, worker_id: str, body: bytes) -> str:
    """Return the header that authorises a wake-up of this worker with this body.

    The token itself is never sent: the address of a worker comes from the bucket, and may be another's.
    """
    digest = hashlib.sha256(body).hexdigest()
    return f"{SCHEME} digest={digest}, signature={_signature(token, worker_id, digest)}"


def verify_header(tokens: Sequence[str], worker_id: str, authorization: str) -> str | None:
    """Return the digest that the body must have, from a header that one of the tokens has signed; None if none has."""
    match = _AUTHORIZATION.match(authorization)
    if match is None:
        return None
    # All are compared, each in constant time.
    valid = [hmac.compare_digest(_signature(each, worker_id, match[1]), match[2]) for each in tokens]
    return match[1] if any(valid) else None


def verify_body(digest: str, body: bytes) -> bool:
    return hmac.compare_digest(hashlib.sha256(body).hexdigest(), digest)


def _signature(token: str, worker_id: str, digest: str) -> str:
    return hmac.new(token.encode(), f"qo-push\n{worker_id}\n{digest}".encode(), hashlib.sha256).hexdigest()


def is_address(text: str) -> bool:
    """Whether wake-ups can be sent to the text at all: it is "host:port", and the host is an IP address."""
    everywhere = [ipaddress.ip_network(each) for each in ("0.0.0.0/0", "::/0")]
    return is_reachable(text, everywhere, same_host=True)


def is_reachable(address: str, networks: Sequence[Network], *, same_host: bool) -> bool:
    """Whether wake-ups may be sent to "host:port": an IP address within the networks. A name is never looked up. An
    address of the loopback is meant for the worker's own machine."""
    match = _ADDRESS.match(address)
    if match is None or not 0 < int(match[2]) <= 65_535:
        return False
    try:
        ip = ipaddress.ip_address(match[1].removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    if ip.is_loopback and not same_host:
        return False
    return any(ip in network for network in networks if network.version == ip.version)
