"""Commands for tasks and workers."""
