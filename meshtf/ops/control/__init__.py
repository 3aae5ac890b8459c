"""Scopes and control flow."""
