"""The physical robot."""
