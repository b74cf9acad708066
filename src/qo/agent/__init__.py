"""Running pipeline tasks in a worker: wake-up, claim, heartbeat, run, complete."""
