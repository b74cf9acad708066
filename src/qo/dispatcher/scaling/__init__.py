"""Scaling: the load of runtimes, whose scaler decides for which, and what was decided."""
