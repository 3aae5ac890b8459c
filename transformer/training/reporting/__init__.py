"""Reports of a training run: metrics, baselines, summaries, monitoring."""
