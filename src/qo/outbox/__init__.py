"""Submit tasks in the transaction of an application's own database; a relay moves them to the queue.

    from qo import outbox

    with sqlite3.connect("shop.db") as connection:
        connection.execute("INSERT INTO orders ...")
        outbox.submit(connection, "send_invoice", {"order": 7})

Either both rows are committed or none. ``qo relay --from sqlite:shop.db`` submits the task, exactly once.
"""

from __future__ import annotations

from qo.outbox.insertion import create_table, statement, submit
from qo.outbox.outbox_table import TABLE, Dialect, table_sql
from qo.outbox.relay import Relay

__all__ = ["TABLE", "Dialect", "Relay", "create_table", "statement", "submit", "table_sql"]
