"""The nouns of the OCI specifications: pure values, no I/O."""
