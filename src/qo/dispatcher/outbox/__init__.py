"""Side effects, stored by the transaction that decided them, and the queues that wake-ups go to."""
