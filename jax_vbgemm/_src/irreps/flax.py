"""e3nn_jax.flax.Linear as one operation."""

from __future__ import annotations

from typing import Any

import e3nn_jax as e3nn
import flax.linen as nn

from jax_vbgemm._src.irreps.e3nn import apply_linear, is_mixed


class Linear(e3nn.flax.Linear):  # type: ignore[misc]
    """`e3nn_jax.flax.Linear`, with its options, parameters and results, as one operation.

    Each irrep is read and written in place. With `num_indexed_weights`, rows are sorted by their weights, and no
    weights are copied. Where each row has weights of its own (floats, or an IrrepsArray), e3nn's implementation is
    used.

    Examples:
      >>> import e3nn_jax as e3nn
      >>> import jax
      >>> from jax_vbgemm.irreps.flax import Linear
      >>> x = e3nn.normal("8x0e + 4x1o", jax.random.key(0), (5,))
      >>> layer = Linear("16x0e + 16x1o")
      >>> variables = layer.init(jax.random.key(1), x)
      >>> sorted(variables["params"])
      ['w[0,0] 8x0e,16x0e', 'w[1,1] 4x1o,16x1o']
      >>> layer.apply(variables, x).shape
      (5, 64)
    """

    @nn.compact
    def __call__(self, weights_or_input: Any, input_or_none: Any = None) -> Any:
        """The map of the input, which is the last argument; before it may come indices of weights, or weights to mix
        by."""
        weights, x = (None, weights_or_input) if input_or_none is None else (weights_or_input, input_or_none)
        if is_mixed(weights):
            return super().__call__(weights, x)

        def get_parameter(name: str, shape: tuple[int, ...], std: float, dtype: Any) -> Any:
            initializer = self.parameter_initializer
            return self.param(name, nn.initializers.normal(std) if initializer is None else initializer(), shape, dtype)

        return apply_linear(self, weights, x, get_parameter)
