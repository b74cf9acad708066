"""The dispatcher's figures: how fast events become tasks, what a big pipeline costs, and what many partitions do."""
