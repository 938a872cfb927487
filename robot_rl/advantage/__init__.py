"""Multi-turn advantage core: torch and NumPy only, usable alone."""
