"""Events, timing and traces of a pull."""
