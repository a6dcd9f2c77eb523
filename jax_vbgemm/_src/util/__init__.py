"""Helpers that know nothing of products: checks of arguments, messages, and all of JAX that differs by version."""
