"""The transport between nodes: MPI, frames, send queues."""
