"""A small HTTP/1.1 server without dependencies: for the worker's status pages and the dashboard."""
