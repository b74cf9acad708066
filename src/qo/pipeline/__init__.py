"""A DAG from its file: read, checked, explained."""
