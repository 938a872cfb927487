"""Learned and shaped rewards, and policies learnt from preferences."""
