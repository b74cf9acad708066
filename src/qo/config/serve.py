"""The settings of the HTTP API of the queue."""

from __future__ import annotations

from dataclasses import dataclass

from qo.config import kinds
from qo.config.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    listen: str = setting(
        "127.0.0.1:8460",
        "QO_SERVE_LISTEN",
        kind=kinds.ADDRESS,
        help="The address of the queue's HTTP API; port 0: any free one. There is no TLS: put a proxy in front of it.",
    )
    tokens: str | None = setting(
        None,
        "QO_SERVE_TOKENS",
        kind=kinds.TEXT,
        help="The file of the tokens that qo serve accepts; unset: serve-tokens.json in dispatcher.secrets_dir.",
    )
    body_max_bytes: int = setting(
        8_388_608,
        "QO_SERVE_BODY_MAX_BYTES",
        kind=kinds.whole(1024),
        help="The largest request body that qo serve accepts.",
    )
    rate_per_s: float = setting(
        200.0,
        "QO_SERVE_RATE_PER_S",
        kind=kinds.number(0),
        help="How many requests a second each token may send, and how many tasks submit; bursts of five seconds pass. "
        "0: any number.",
    )
    waits_max: int = setting(
        1000,
        "QO_SERVE_WAITS_MAX",
        kind=kinds.whole(0, 100_000),
        help="How many requests may wait for tasks at a time; half of them may be of one token.",
    )
    wait_reads_per_s: float = setting(
        50.0,
        "QO_SERVE_WAIT_READS_PER_S",
        kind=kinds.number(0.1),
        help="How many tasks a second are read for all requests that wait for one.",
    )
