"""Policies that act in chunks or learn from sequences."""
