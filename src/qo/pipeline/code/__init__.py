"""The code that a pipeline names: found, fingerprinted and packed without importing it."""
