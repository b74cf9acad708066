"""What a handler is, sees and may raise."""
