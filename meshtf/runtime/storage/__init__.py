"""Where values lie: shards of variables, arguments of functions, files."""
