"""Ops that run recorded bodies: loops, branches, calls."""
