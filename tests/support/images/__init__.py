"""Images for tests and benchmarks: generated, adversarial and real ones, kept as OCI layouts."""
