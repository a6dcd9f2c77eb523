"""Optimizers that treat all weight matrices together."""
