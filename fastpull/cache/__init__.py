"""The content-addressed cache that tasks, processes, users and nodes share. See ``docs/cache.md`` for its format."""
