"""The exchange of blobs between nodes."""
