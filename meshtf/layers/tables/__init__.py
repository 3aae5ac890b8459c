"""Embedding tables of many features, for recommenders."""
