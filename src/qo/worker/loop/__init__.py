"""The loop of a worker: find, claim, run, settle, drain."""
