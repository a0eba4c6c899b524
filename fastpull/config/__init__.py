"""Settings: their schema, where they come from, and the values that people write."""
