"""The whole of the tests, run step by step, and what failed of it in one line each."""
