"""The secrets that all dispatchers of an installation share: keys that sign, and secrets of webhooks."""
