"""Attention to sequences whose positions are sharded: around a ring, or over the heads."""
