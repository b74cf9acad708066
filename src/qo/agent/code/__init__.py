"""The code that an attempt runs: that of its task's version, or the worker's own."""
