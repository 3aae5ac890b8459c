"""Storage of values: shards of variables, arguments of functions, files."""
