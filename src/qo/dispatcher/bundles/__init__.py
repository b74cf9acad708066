"""Bundles of code: stored beside the data, checked before use, and named by the jobs of versions."""
