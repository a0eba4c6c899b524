"""Building blocks for tasks and threads: semaphores, budgets, executors, complete writes."""
