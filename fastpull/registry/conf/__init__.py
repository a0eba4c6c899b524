"""``registries.conf``: mirrors, blocked registries and aliases."""
