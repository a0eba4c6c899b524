"""Authentication: challenges, tokens, and the places of credentials."""
