"""Which qo this is. Here and in ``pyproject.toml``; a test compares the two."""

VERSION = "0.1.0"
