"""Episodes, replay and normalisation."""
