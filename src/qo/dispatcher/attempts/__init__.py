"""One attempt at a task: claimed with pinned inputs, kept alive, and completed under its fence."""
