"""Pipelines on Spark through qo, against a bare script and against other orchestrators."""
