"""What the dispatcher and its callers agree on: the bodies of requests and answers, and the clients."""
