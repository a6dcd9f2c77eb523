"""e3nn_jax.haiku.Linear as one operation."""

from __future__ import annotations

from typing import Any

import e3nn_jax as e3nn

from jax_vbgemm._src.irreps.e3nn import apply_linear, is_mixed


class Linear(e3nn.haiku.Linear):  # type: ignore[misc]
    """`e3nn_jax.haiku.Linear`, with its options, parameters and results, as one operation; see `irreps.flax.Linear`.

    Examples:
      >>> import e3nn_jax as e3nn
      >>> import haiku as hk
      >>> import jax
      >>> from jax_vbgemm.irreps.haiku import Linear
      >>> x = e3nn.normal("8x0e + 4x1o", jax.random.key(0), (5,))
      >>> network = hk.without_apply_rng(hk.transform(lambda x: Linear("16x0e + 16x1o")(x)))
      >>> parameters = network.init(jax.random.key(1), x)
      >>> network.apply(parameters, x).shape
      (5, 64)
    """

    def __call__(self, weights_or_input: Any, input_or_none: Any = None) -> Any:
        """The map of the input, which is the last argument; before it may come indices of weights, or weights to mix
        by."""
        weights, x = (None, weights_or_input) if input_or_none is None else (weights_or_input, input_or_none)
        if is_mixed(weights):
            return super().__call__(weights, x)
        return apply_linear(self, weights, x, self.get_parameter)
