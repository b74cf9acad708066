"""The settings of push: wake-ups over HTTP from whoever makes a task ready to the workers."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_network

from qo.config import kinds
from qo.config.setting import setting
from qo.core.push import Network

LOOPBACK = ("127.0.0.0/8", "::1/128")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSettings:
    enabled: bool = setting(
        False,
        "QO_PUSH",
        kind=kinds.FLAG,
        help="Wake a worker over HTTP when a task becomes ready. A wake-up that is lost costs time, never work.",
    )
    token: str | None = setting(
        None,
        "QO_PUSH_TOKEN",
        kind=kinds.TEXT,
        secret=True,
        help="The secret that signs wake-ups, the same for producers and workers. With it, workers take wake-ups at "
        "worker.http. Two, separated by a comma, to rotate it: both are accepted, the last one signs.",
    )
    networks: tuple[str, ...] = setting(
        (),
        "QO_PUSH_NETWORKS",
        kind=kinds.NETWORKS,
        help="The networks in which wake-ups may be sent, as 10.0.0.0/8,fd00::/8; unset: on this machine only.",
    )

    @property
    def tokens(self) -> tuple[str, ...]:
        """The secrets that are accepted; the last one signs."""
        return tuple(each.strip() for each in (self.token or "").split(",") if each.strip())

    @property
    def allowed(self) -> tuple[Network, ...]:
        """The networks in which wake-ups may be sent."""
        return tuple(ip_network(each) for each in self.networks or LOOPBACK)
