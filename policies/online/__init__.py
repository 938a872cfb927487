"""Learners that improve from their own experience."""
