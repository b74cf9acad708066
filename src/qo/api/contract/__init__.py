"""The bodies of the HTTP API, defined once for the server, its services and its clients."""
