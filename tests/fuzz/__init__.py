"""Coverage-guided fuzzing of the native stage and of the parsers. See ``docs/testing.md``."""
