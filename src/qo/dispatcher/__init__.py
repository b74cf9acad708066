"""The control plane: remembers which data exists, and decides what must run next. It never computes."""
