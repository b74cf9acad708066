"""Committed data: which files make up a partition at a revision, and how a commit changes that."""
