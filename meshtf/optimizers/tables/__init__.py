"""Optimizers that recommenders use for embedding tables, and updates of touched rows."""
