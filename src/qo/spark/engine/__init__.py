"""Sessions of Spark: started, supervised and ended."""
