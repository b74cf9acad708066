"""Commands for pipelines and their data."""
