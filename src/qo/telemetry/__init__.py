"""Tracing with OpenTelemetry, if it is installed."""
