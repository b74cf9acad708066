"""What the dispatcher does over and over. Each loop is a ``tick``: one bounded step, told how much it did."""
