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

__all__ = [
    "any_store",
    "clock",
    "clocked_queue",
    "local_store",
    "memory_store",
    "prefixed_s3_store",
    "queue",
    "shared_bucket",
]
