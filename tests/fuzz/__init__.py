"""Coverage-guided fuzzing of the native extension and of the parsers. See ``docs/testing.md``."""
