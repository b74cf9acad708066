"""Leased shards: which of them this worker polls."""
