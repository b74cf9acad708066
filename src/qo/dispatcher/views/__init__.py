"""Read-only answers for people: datasets, history, lineage, staleness, and why something is or is not there."""
