"""Hydra configuration: one primary file per verb, one group per room."""
