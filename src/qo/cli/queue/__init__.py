"""Commands for the tasks of a queue."""
