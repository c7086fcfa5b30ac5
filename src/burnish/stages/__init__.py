"""What a user runs, from a config to a result."""
