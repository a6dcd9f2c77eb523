"""The implementation, from which the public packages (jax_vbgemm, jax_vbgemm.flax, jax_vbgemm.optax) re-export."""
