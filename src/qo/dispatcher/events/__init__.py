"""Events, the counts of what became of them, and invalidations."""
