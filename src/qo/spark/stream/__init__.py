"""Always-on sources as Structured Streaming queries."""
