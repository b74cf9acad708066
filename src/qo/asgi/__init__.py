"""What the HTTP APIs share: listeners, limits, errors, traffic."""
