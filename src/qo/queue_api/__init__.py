"""The HTTP API of the queue: routes, tokens, and waiting for tasks."""
