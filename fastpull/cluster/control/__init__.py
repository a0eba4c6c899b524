"""Control messages between nodes, and what the nodes agree on."""
