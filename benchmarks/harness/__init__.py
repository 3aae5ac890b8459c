"""Runs cases in separate processes, and times them in rounds."""
