"""Learners with a person in the loop."""
