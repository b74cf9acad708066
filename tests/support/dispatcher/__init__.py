"""States, pipelines and dispatchers for tests."""
