"""The front end: `mtf.function`, `mtf.explain`, `mtf.export`."""
