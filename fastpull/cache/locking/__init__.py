"""Locks between processes and nodes: files, owners, heartbeats."""
