"""Storage of shards of variables and of arguments of functions; folders of files."""
