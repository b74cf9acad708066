"""Queues on every store."""
