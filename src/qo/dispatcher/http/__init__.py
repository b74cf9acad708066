"""The HTTP API: routes, errors, limits."""
