"""Purging the history that nothing depends on: versions that ended long ago, tasks that were replaced, old events."""
