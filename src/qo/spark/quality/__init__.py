"""Expectations, measured while an output is written."""
