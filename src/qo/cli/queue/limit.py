"""qo limit list: the limits over all workers, and which worker has which share."""

from __future__ import annotations

from datetime import datetime

from qo.cli.invocation import Session, command, new_app, new_group
from qo.core.durations import format_instant
from qo.core.limit_shares import LimitRegister
from qo.queue import limit_registers
from qo.queue.queue import Queue

app = new_app()
limit = new_group(app, "limit", "Show the limits over all workers, and who has which share.")


@command(limit, "list")
def list_(session: Session) -> None:
    """List the limits that workers have shares of, or take starts from.

    A share is how many tasks a worker may run at a time. That of a worker that died ends at the instant that is shown.
    """

    async def read(queue: Queue) -> tuple[list[LimitRegister], datetime]:
        return await limit_registers.read_all(queue), await queue.store.now()

    registers, now = session.ask(read)
    if session.json:
        session.output.document([_document(each, now) for each in registers])
        return
    rows = [row for each in registers for row in _rows(each, now)]
    session.output.table(("limit", "worker", "share", "wants", "until", "next start"), rows)


def _document(register: LimitRegister, now: datetime) -> dict[str, object]:
    shares = [
        {"worker": worker, "share": share.permits, "wants": share.demand, "until": share.until}
        for worker, share in sorted(register.shares_at(now).items())
    ]
    return {"limit": register.name, "shares": shares, "next_start": register.next_start}


def _rows(register: LimitRegister, now: datetime) -> list[tuple[str, ...]]:
    next_start = format_instant(register.next_start)
    shares = sorted(register.shares_at(now).items())
    if not shares:
        return [(register.name, "", "", "", "", next_start)]
    return [
        (register.name, worker, str(share.permits), str(share.demand), format_instant(share.until), next_start)
        for worker, share in shares
    ]
