"""Attention: heads, scores, masks, positions."""
