"""HTTP to registries: transport, redirects, retries, proxies, certificates."""
