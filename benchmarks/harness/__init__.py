"""Cases in processes of their own, timed in rounds."""
