"""How tasks are started that no worker waits for: in process, as functions."""
