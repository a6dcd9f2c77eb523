"""e3nn_jax.equinox.Linear as one operation."""

from __future__ import annotations

from typing import Any, ClassVar

import e3nn_jax as e3nn

from jax_vbgemm._src.irreps.e3nn import as_floats, linear_map_of, mapped, parameter_name


class Linear(e3nn.equinox.Linear):  # type: ignore[misc]
    """`e3nn_jax.equinox.Linear`, with its options, parameters and results, as one operation.

    For linear_type "vanilla" and "indexed". Of the "mixed" types, where each row has weights of its own, e3nn's
    implementation is used.

    Examples:
      >>> import e3nn_jax as e3nn
      >>> import jax
      >>> from jax_vbgemm.irreps.equinox import Linear
      >>> x = e3nn.normal("8x0e + 4x1o", jax.random.key(0), (5,))
      >>> layer = Linear(irreps_in=x.irreps, irreps_out="16x0e + 16x1o", key=jax.random.key(1))
      >>> layer(x).shape
      (5, 64)
    """

    instructions: ClassVar[None] = None  # all pairs of equal irreps are connected

    def __call__(self, weights_or_input: Any, input_or_none: Any = None) -> Any:
        """The map of the input, which is the last argument; before it may come indices of weights, or weights to mix
        by.

        Raises:
          ValueError: the input doesn't have the layer's irreps, or indices are given to a layer of another linear_type
            than "indexed", or none to a layer of it.
        """
        indices, given = (None, weights_or_input) if input_or_none is None else (weights_or_input, input_or_none)
        if self.linear_type not in ("vanilla", "indexed"):
            return super().__call__(weights_or_input, input_or_none)
        if (indices is None) != (self.linear_type == "vanilla"):
            raise ValueError(
                f"Linear: linear_type is {self.linear_type!r}, but indices of weights are "
                f"{'not ' if indices is None else ''}given"
            )
        x = as_floats(given)
        if x.irreps.regroup() != self.irreps_in:
            raise ValueError(f"Linear: x has the irreps {x.irreps}, but irreps_in is {self.irreps_in}")
        x = x if x.irreps == self.irreps_in else x.regroup()
        linear = linear_map_of(self, self._linear.irreps_in, self._linear.irreps_out)
        weights = [self._weights[parameter_name(linear, path)] for path in linear.paths]
        y = mapped(linear, self._linear.irreps_out, weights, x, indices)
        if self.channel_out is not None:
            y = y.mul_to_axis(self.channel_out)
        return y.rechunk(self.irreps_out)
