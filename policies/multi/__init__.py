"""Several agents, one reward."""
