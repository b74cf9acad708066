"""Commands that run a process."""
