"""Who may do what: signing keys, capability tokens, principals, credentials."""
