"""The images of a job: the cluster, its tasks, their coordinator and the report."""
