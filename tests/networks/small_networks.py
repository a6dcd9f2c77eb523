"""Small networks for the tests of `jax_vbgemm.networks`."""

import itertools

import equinox as eqx
import oracle

ROWS, IN = 5, 4


def network(widths, seed=0, stack=(), biases=True):
    return [
        (
            oracle.random((*stack, m, n), "float64", seed + i),
            oracle.random((*stack, n), "float64", seed) if biases else None,
        )
        for i, (m, n) in enumerate(itertools.pairwise(widths))
    ]


class WithActivation(eqx.Module):
    """Layers and their activation, as users of Equinox write them."""

    layers: tuple[eqx.nn.Linear, ...]
    activation: object
