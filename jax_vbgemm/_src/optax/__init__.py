"""Optimizers that treat all weight matrices in a few operations."""
