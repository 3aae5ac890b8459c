"""Attention as one op, whose scores are not stored."""
