"""Programs as StableHLO modules of one mesh position."""
