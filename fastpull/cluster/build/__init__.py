"""Building layers together: one node builds each layer for all nodes."""
