"""Sources of events: emitted by hand, by the scheduler, by webhooks."""
