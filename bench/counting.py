"""A proxy process that counts requests by kind.

Each line on its standard input is answered with the counts so far, which then start again at zero. It ends when
its standard input does.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from urllib.parse import parse_qs

from bench import lab  # noqa: F401 - makes the proxies importable.

from support.servers.proxies import RequestLink  # isort: skip

_counts: Counter[str] = Counter()


class CountingLink(RequestLink):
    def request(self, head: bytes, body: bytes) -> None:
        for kind in kinds(*head.split(b"\r\n", 1)[0].decode().split(" ")[:2]):
            _counts[kind] += 1
        self.forward(head + body)


def kinds(method: str, target: str) -> list[str]:
    """What a request counts as. A LIST of the first shard counts as one poll too: each poll of a worker that
    lists shard by shard has one."""
    path, _, query = target.partition("?")
    arguments = parse_qs(query, keep_blank_values=True)
    if "list-type" in arguments:
        first_shard = arguments.get("prefix", [""])[0] in ("ready/0", "ready/0/")
        return ["list", "poll"] if first_shard else ["list"]
    if "delete" in arguments:
        return ["delete_many"]
    if path.strip("/").count("/") == 0:
        return ["bucket"]  # Its versioning state, or its mere presence: once per process.
    return [method.lower()]


async def main(host: str, port: str) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: CountingLink(host, int(port)), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    asked = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(asked), sys.stdin)
    while await asked.readline():
        print(json.dumps(_counts), flush=True)
        _counts.clear()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
