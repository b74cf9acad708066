"""Pipelines, as pure values and rules: DAGs, editions, generations, events, routing, pressure."""
