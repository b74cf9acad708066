"""What goes over the wire, once: the bodies of the HTTP API, used by the server, its services and its clients."""
