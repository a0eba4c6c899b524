"""``registries.conf``: mirrors, blocked names and aliases."""
