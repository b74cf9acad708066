"""Hours of steady load on real processes: what they use and how long tasks take must not grow."""
