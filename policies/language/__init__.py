"""Policies that speak."""
