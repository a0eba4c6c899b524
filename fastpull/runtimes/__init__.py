"""What runtimes expect in, or beside, a root filesystem: a profile is one module, without I/O."""
