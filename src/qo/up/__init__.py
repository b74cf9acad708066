"""A whole installation on one machine: bucket, state, dispatcher, scheduler, workers and Spark in one command."""
