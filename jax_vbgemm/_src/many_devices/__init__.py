"""Divides work among the devices of a mesh axis, by shard_map and JAX's own collectives."""
