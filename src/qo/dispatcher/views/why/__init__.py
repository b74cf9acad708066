"""Answers to `qo why`."""
