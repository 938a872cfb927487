"""Simulated worlds as Gymnasium vector environments."""
