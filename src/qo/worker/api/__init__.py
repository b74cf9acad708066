"""The interface of handlers: how they are registered, and what they receive and may raise."""
