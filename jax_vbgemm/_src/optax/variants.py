"""The steps of Muon variants after orthogonalisation: normalised neurons and cautious weight decay."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers

from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.optax.hyperparameters import check_number
from jax_vbgemm._src.optax.matrices import axes_of
from jax_vbgemm._src.optax.packed import by_member, is_ragged
from jax_vbgemm._src.optax.splitting import by_part, parts_of


class NorMuonState(NamedTuple):
    """The state of `scale_by_normuon`.

    nu: for each matrix, the average of the mean square of each neuron's update, with size 1 along the reduction axes.

    Examples:
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm.optax
      >>> jax_vbgemm.optax.scale_by_normuon().init([jnp.ones((4, 6))]).nu[0].shape
      (1, 6)
    """

    nu: Any


def scale_by_normuon(
    beta2: Any = 0.95, eps: Any = 1e-10, weight_dimension_numbers: Any = None, split: Any = None
) -> optax.GradientTransformation:
    """Divides orthogonalised updates by the root mean square of each neuron, and keeps each matrix's norm.

    NorMuon, Li et al., arXiv 2510.05491, Algorithm 1: with O the orthogonalised momentum, the mean of O^2 over the
    inputs of each neuron goes into an average, v <- beta2 v + (1 - beta2) mean(O^2). The update is O / (sqrt(v) + eps),
    times a factor that gives it the Frobenius norm of O. A neuron is a column of a kernel (inputs, outputs): an entry
    of the output axes of the dimension numbers. Averages are held in float32 at least.

    Args:
      beta2: of the average, in [0, 1). eps: added to both denominators.
      weight_dimension_numbers, split: as for `muon`; the numbers without None leaves.

    Raises:
      ValueError: beta2 is not in [0, 1), or parameters are packed.

    Examples:
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm.optax
      >>> transformation = jax_vbgemm.optax.scale_by_normuon()
      >>> updates = [jnp.array([[2.8, 0.4], [0.0, 0.0]])]
      >>> scaled, _ = transformation.update(updates, transformation.init(updates))
      >>> jnp.linalg.norm(scaled[0], axis=0).round(3).tolist()  # neurons of equal norm
      [2.0, 2.0]
    """
    check_number("scale_by_normuon", "beta2", beta2, 0, 1)

    def numbers_of(tree: Any) -> list[Any]:
        structure: Any = jax.tree.structure(tree)
        given = weight_dimension_numbers(tree) if callable(weight_dimension_numbers) else weight_dimension_numbers
        if given is None:
            return [MuonDimensionNumbers()] * structure.num_leaves
        return list(structure.flatten_up_to(given))

    def init(params: Any) -> NorMuonState:
        if any(map(is_ragged, jax.tree.leaves(params, is_leaf=is_ragged))):
            raise ValueError("scale_by_normuon: parameters are packed, and it treats each matrix by itself")
        leaves: list[Any] = jax.tree.leaves(params)
        nu = [_zeros(x, axes_of(x, numbers)[0]) for x, numbers in zip(leaves, numbers_of(params), strict=True)]
        return NorMuonState(jax.tree.unflatten(jax.tree.structure(params), nu))

    def update(updates: Any, state: NorMuonState, params: Any = None) -> tuple[Any, NorMuonState]:
        del params
        leaves: list[Any] = jax.tree.leaves(updates)
        structure: Any = jax.tree.structure(updates)
        parts = parts_of(updates, split)
        results: list[jax.Array] = []
        averages: list[jax.Array] = []
        old = structure.flatten_up_to(state.nu)
        for x, numbers, nu, x_parts in zip(leaves, numbers_of(updates), old, parts, strict=True):
            reduction, output = axes_of(x, numbers)
            nu = beta2 * nu + (1 - beta2) * _mean_squares(x, reduction)
            wide = x.astype(accumulator(x.dtype)) / (jnp.sqrt(nu) + eps)

            def norm(x: jax.Array, axes: Any = (*reduction, *output)) -> jax.Array:
                return jnp.broadcast_to(jnp.sqrt(jnp.sum(_squares(x), axes, keepdims=True)), x.shape)

            scaled = wide * (by_part(norm, x, x_parts) / (by_part(norm, wide, x_parts) + eps))
            results.append(scaled.astype(x.dtype))
            averages.append(nu.astype(old[len(averages)].dtype))
        return structure.unflatten(results), NorMuonState(structure.unflatten(averages))

    return optax.GradientTransformation(init, update)


def add_cautious_decayed_weights(weight_decay: Any = 0.0, mask: Any = None) -> optax.GradientTransformation:
    """optax.add_decayed_weights for the elements that the update moves towards zero anyway.

    Cautious weight decay, Chen et al., arXiv 2510.12402: weight_decay * w is added to an element u of the update only
    where u w >= 0, so that decay never works against the step. The arguments and the state are those of
    `optax.add_decayed_weights`; real parameters.

    Raises:
      ValueError: in `update`, there are no params.

    Examples:
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm.optax
      >>> transformation = jax_vbgemm.optax.add_cautious_decayed_weights(0.1)
      >>> params, updates = jnp.array([2.0, 2.0]), jnp.array([1.0, -1.0])
      >>> transformation.update(updates, transformation.init(params), params)[0].tolist()
      [1.2000000476837158, -1.0]
    """
    plain = optax.add_decayed_weights(weight_decay)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        decayed, state = plain.update(updates, state, params)

        def chosen(update: Any, weight: Any, decayed: Any) -> Any:
            return jnp.where(update * weight >= 0, decayed, update.astype(decayed.dtype))

        return by_member(chosen, updates, params, decayed), state

    transformation = optax.GradientTransformation(plain.init, update)
    return transformation if mask is None else optax.masked(transformation, mask)


def _squares(x: jax.Array) -> jax.Array:
    wide = x.astype(accumulator(x.dtype))
    return jnp.real(wide * wide.conj())


def _mean_squares(x: jax.Array, axes: Any) -> jax.Array:
    count = max(math.prod(x.shape[axis] for axis in axes), 1)
    means: jax.Array = jnp.sum(_squares(x), axes, keepdims=True) / count
    return means


def _zeros(x: jax.Array, axes: Any) -> jax.Array:
    """The result of `_mean_squares` for zeros."""
    shape = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
    return jnp.zeros(shape, jnp.real(jnp.zeros((), accumulator(x.dtype))).dtype)
