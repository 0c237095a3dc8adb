"""How fast fedveil is, beside its peers: `python -m benchmarks --help`."""
