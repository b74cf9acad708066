"""Run by Alembic around every step: on the connection, and in the transaction, that ``upgrade`` gives it."""

from __future__ import annotations

from alembic import context

from qo.dispatcher.state import schema

context.configure(connection=context.config.attributes["connection"], target_metadata=schema.metadata)
context.run_migrations()
