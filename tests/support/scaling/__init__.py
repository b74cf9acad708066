"""Load curves for scaling decisions."""
