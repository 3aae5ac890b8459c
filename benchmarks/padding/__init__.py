"""What sizes cost that an axis does not divide: `python -m benchmarks.padding`."""
