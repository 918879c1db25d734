"""What a user would pick instead, on the same work; each a script of its own environment."""
