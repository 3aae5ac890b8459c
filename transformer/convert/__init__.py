"""Models of other libraries, in their files, and ours: the same numbers under other names."""
