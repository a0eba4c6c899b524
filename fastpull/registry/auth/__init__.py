"""Authentication: credentials and their sources, challenges, tokens."""
