"""What others see of a worker: statistics, status pages, metrics, heartbeats."""
