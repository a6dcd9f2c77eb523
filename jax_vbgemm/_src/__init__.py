"""Everything behind the public names: jax_vbgemm, jax_vbgemm.flax and jax_vbgemm.optax re-export from here."""
