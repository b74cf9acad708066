"""The settings of fetching: files behind URLs that sources watch and jobs read."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_network

from qo.config import kinds
from qo.config.setting import setting
from qo.core.web import Network


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    networks: tuple[str, ...] = setting(
        (),
        "QO_FETCH_NETWORKS",
        kind=kinds.NETWORKS,
        help="Networks that are not public and that files behind URLs may be fetched from, as 10.0.0.0/8,127.0.0.0/8.",
    )
    bytes_max: int = setting(
        2**30,
        "QO_FETCH_BYTES_MAX",
        kind=kinds.whole(1),
        help="The largest file that is fetched from a URL, in bytes.",
    )
    timeout_s: float = setting(
        60.0,
        "QO_FETCH_TIMEOUT_S",
        kind=kinds.number(0.1),
        help="Seconds that a server may be silent while a file is fetched from a URL.",
    )

    @property
    def allowed(self) -> tuple[Network, ...]:
        return tuple(ip_network(each) for each in self.networks)
