"""Encoders as parts of their own: what turns pictures into a few numbers, before any method learns from them."""
