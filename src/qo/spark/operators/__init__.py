"""What runs on frames: the built-in operators, and functions of users."""
