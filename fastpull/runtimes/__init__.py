"""What runtimes expect in, or beside, a root filesystem: a dialect is one module, without I/O."""
