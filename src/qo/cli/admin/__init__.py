"""Commands for setup and operation."""
