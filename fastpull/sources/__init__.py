"""Sources: who can say what a reference is, and give its blobs."""
