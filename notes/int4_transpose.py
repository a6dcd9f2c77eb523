"""XLA of jaxlib 0.11.2 widens and transposes int4 wrongly on a GPU, without this package (H200, 2026-11-30: 8 of 8).

Run in several processes: the autotuner chooses other kernels in each.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np

values = np.random.default_rng(0).integers(-7, 8, (2, 256))
x, scale = jax.device_put(values.astype(jnp.int4)), np.float32(0.7)


@jax.jit
def widened(x, scale):
    transposed = jax.lax.optimization_barrier((x.astype(jnp.float32) * scale).T)
    return transposed, transposed.T


kinds = re.findall(r"kind=(\w+)", widened.lower(x, scale).compile().as_text())
first, second = widened(x, scale)
print(kinds, np.allclose(first, (values * scale).T), np.allclose(second, values * scale))
