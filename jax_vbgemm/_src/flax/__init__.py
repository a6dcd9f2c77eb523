"""Flax layers of different sizes as one operation."""
