"""Sinks: tables of databases outside, and files for others, that follow published datasets."""
