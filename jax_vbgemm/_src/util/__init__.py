"""Helpers independent of matrix products: argument checks, messages, and the JAX features that differ by version."""
