from stores import any_store, clock, clocked_queue, local_store, memory_store, queue

__all__ = ["any_store", "clock", "clocked_queue", "local_store", "memory_store", "queue"]
