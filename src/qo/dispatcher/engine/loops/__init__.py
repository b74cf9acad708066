"""The dispatcher's loops, one per module. Each has a ``tick``: one bounded step that returns how much it did."""
