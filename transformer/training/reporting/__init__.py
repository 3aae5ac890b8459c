"""What a run of training says: metrics, baselines, reports, alarms."""
