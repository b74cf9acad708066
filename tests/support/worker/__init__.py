"""Workers and attempts for tests."""
