"""Sinks: tables of databases outside that follow published datasets, exactly once."""
