from support.outbox_application import application
from support.stores.queues import (
    any_store,
    clock,
    clocked_queue,
    local_store,
    memory_store,
    prefixed_s3_store,
    queue,
    shared_bucket,
)
from support.worker.processes import local_place, place, s3_place

__all__ = [
    "any_store",
    "application",
    "clock",
    "clocked_queue",
    "local_place",
    "local_store",
    "memory_store",
    "place",
    "prefixed_s3_store",
    "queue",
    "s3_place",
    "shared_bucket",
]
