"""The queue's figures: requests, drain rates against peers, the cost of a claim, and start-up time."""
