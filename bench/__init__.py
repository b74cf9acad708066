"""Benchmarks: `python -m bench [suite ...]` prints a table and writes `bench/results/<suite>.json`."""
