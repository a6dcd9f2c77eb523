"""Work of one program divided among the devices of a mesh axis, by shard_map and JAX's own collectives."""
