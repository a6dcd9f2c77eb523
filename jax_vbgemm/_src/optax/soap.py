"""SOAP: Adam in the eigenbases of Shampoo's factors, for all matrices together.

Vyas et al., arXiv 2409.11321. Hyperparameters, the order of the steps and numerical results are those of the authors'
soap.py (https://github.com/nikhilvyas/SOAP, MIT), as in SOAP_JAX for optax.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jax_vbgemm._src.elementwise.addition import add_scaled
from jax_vbgemm._src.matmul.api import batched_matmul
from jax_vbgemm._src.optax.decompositions import Devices
from jax_vbgemm._src.optax.hyperparameters import check_integer, check_number, static_integer
from jax_vbgemm._src.optax.kronecker import (
    Factors,
    Options,
    by_shape,
    flat,
    grams,
    leaves_of,
    list_of,
    multiply_both_sides,
    tree_of,
    unflat,
)

_JITTER = 1e-30  # added to the diagonal before the eigendecomposition, a constant of the method


class SoapState(NamedTuple):
    """SOAP's state: trees of the parameters' structure. Moments have the shape of the folded matrix, and are in its
    eigenbasis.

    exp_avg, exp_avg_sq: Adam's moments. GG: the averages of G G^T and G^T G, a pair (left, right) of trees, with None
    if a parameter has no factor. Q: their eigenvectors.

    Examples:
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm.optax
      >>> state = jax_vbgemm.optax.scale_by_soap(max_precond_dim=5).init({"w": jnp.ones((4, 6))})
      >>> state.Q.left["w"].shape, state.Q.right["w"]
      ((4, 4), None)
    """

    count: Any
    exp_avg: Any
    exp_avg_sq: Any
    GG: Any
    Q: Any


def scale_by_soap(
    b1: Any = 0.95,
    b2: Any = 0.95,
    shampoo_beta: Any = -1,
    eps: Any = 1e-8,
    correct_bias: bool = True,
    precondition_frequency: Any = 10,
    max_precond_dim: int = 10000,
    precision: Any = jax.lax.Precision.HIGHEST,
    *,
    weight_dimension_numbers: Any = None,
    implementation: str | None = None,
    mesh_axis: Any = None,
    mesh: Any = None,
) -> optax.GradientTransformation:
    """SOAP without learning rate and weight decay; see `soap`.

    Examples:
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm.optax
      >>> params = {"w": jnp.eye(3, 4), "b": jnp.ones(4)}
      >>> transformation = jax_vbgemm.optax.scale_by_soap()
      >>> state = transformation.init(params)
      >>> for _ in range(3):  # the first step finds the eigenbases and moves nothing
      ...     updates, state = transformation.update(params, state)
      >>> updates["b"].round(2).tolist()
      [1.0, 1.0, 1.0, 1.0]
    """
    check_number("soap", "b1", b1, 0, 1)
    check_number("soap", "b2", b2, 0, 1)
    check_number("soap", "eps", eps, 0)
    check_integer("soap", "precondition_frequency", precondition_frequency, 1)
    max_precond_dim = static_integer("soap", "max_precond_dim", max_precond_dim, 1)
    gram_beta = _gram_beta(shampoo_beta, b2)
    options: Options = {"precision": precision, "implementation": implementation}
    devices = Devices("soap", mesh_axis, mesh)

    def leaves(written: str, tree: Any, **others: Any) -> Any:
        return leaves_of("soap", written, tree, weight_dimension_numbers, max_precond_dim, **others)

    def init(params: Any) -> SoapState:
        structure: Any = jax.tree.structure(params)
        found = leaves("params", params)

        def zeros() -> Any:
            return structure.unflatten([jnp.zeros(leaf.shape, leaf.wide) for leaf in found])

        def factors() -> Factors:
            return tree_of(structure, [leaf.factors(jnp.zeros) for leaf in found])

        return SoapState(jnp.zeros([], jnp.int32), zeros(), zeros(), factors(), factors())

    def update(updates: Any, state: SoapState, params: Any = None) -> tuple[Any, SoapState]:
        structure: Any = jax.tree.structure(updates)
        found = leaves("updates", updates, params=params, moments=state.exp_avg)
        devices.refuse_slices(found)
        gradients = [leaf.of(leaf.x) for leaf in found]
        average, average_sq = structure.flatten_up_to(state.exp_avg), structure.flatten_up_to(state.exp_avg_sq)
        gg, q = list_of(structure, state.GG), list_of(structure, state.Q)
        count = optax.safe_increment(state.count)
        step = count - 1  # counts the steps that move parameters: the first step only finds the bases

        # In the first step the bases are zeros, and so are the moments in them. Moments of leaves without factors are
        # set to zero.
        seen = [
            g if any(leaf.sides) else jnp.where(step == 0, jnp.zeros_like(g), g)
            for leaf, g in zip(found, gradients, strict=True)
        ]
        projected = multiply_both_sides(seen, q, options, transpose=True)
        average = add_scaled(projected, average, 1 - b1, b1)
        average_sq = add_scaled([x * x for x in projected], average_sq, 1 - b2, b2)
        scale = _bias_correction(step, b1, b2) if correct_bias else 1
        normalized = [
            m * jnp.asarray(scale, m.dtype) / (jnp.sqrt(v) + jnp.asarray(eps, m.dtype))
            for m, v in zip(average, average_sq, strict=True)
        ]
        new = multiply_both_sides(normalized, q, options)
        gg = grams(gradients, gg, 1 - gram_beta, gram_beta, options)

        def first(moments: Any) -> Any:
            return unflat(q, devices.decomposed(_eigenvectors, flat(gg))), moments

        def refreshed(moments: Any) -> Any:
            return _refreshed(gg, q, moments[0], moments[1], options, devices)

        def kept(moments: Any) -> Any:
            return q, moments

        which = jnp.where(step == 0, 0, jnp.where(step % precondition_frequency == 0, 1, 2))
        q, (average, average_sq) = jax.lax.switch(which, [first, refreshed, kept], (average, average_sq))
        results = [leaf.back(x) for leaf, x in zip(found, new, strict=True)]
        moments = (structure.unflatten(average), structure.unflatten(average_sq))
        factors = (tree_of(structure, gg), tree_of(structure, q))
        return structure.unflatten(results), SoapState(count, *moments, *factors)

    return optax.GradientTransformation(init, update)


def soap(
    learning_rate: Any = 3e-3,
    b1: Any = 0.95,
    b2: Any = 0.95,
    shampoo_beta: Any = -1,
    eps: Any = 1e-8,
    weight_decay: Any = 0.0,
    correct_bias: bool = True,
    precondition_frequency: Any = 10,
    max_precond_dim: int = 10000,
    precision: Any = jax.lax.Precision.HIGHEST,
    *,
    weight_decay_mask: Any = None,
    weight_dimension_numbers: Any = None,
    implementation: str | None = None,
    mesh_axis: Any = None,
    mesh: Any = None,
) -> optax.GradientTransformation:
    """SOAP: Adam in the eigenbases of Shampoo's factors, in a few operations for all matrices.

    A step is one `batched_gram` for all factors and four `batched_matmul`, for L^T G R and back. Every
    `precondition_frequency` steps the bases take one step of power iteration: one product for all bases, and a QR
    decomposition for all bases of one size. As in the authors' implementation, the first step finds the bases by
    eigendecompositions and moves no parameter.

    Parameters of rank 0 and 1, and those whose dimension numbers are None, are left to Adam. Parameters of rank 3 and
    more are folded to matrices. Statistics are float32, or float64 for float64 parameters.

    Args:
      learning_rate: a number or a schedule.
      b1, b2: Adam's decay rates.
      shampoo_beta: the decay rate of the factors; -1 means b2.
      eps: added to the root of the second moment.
      weight_decay: decoupled, times the learning rate; none in the first step.
      correct_bias: whether Adam's averages are corrected for their zeros at the start.
      precondition_frequency: the number of steps from one update of the bases to the next.
      max_precond_dim: a dimension above this has no factor.
      precision, implementation: of the products, as for `batched_matmul`.
      weight_decay_mask: as in optax.adamw.
      weight_dimension_numbers: a tree of optax.contrib.MuonDimensionNumbers, None for Adam, or a callable that makes
        one; axes that neither number names are a batch. None: the last axis is the output, all others are reduced.
      mesh_axis: a mesh axis, or a tuple of axes, among whose devices the eigendecompositions and the QR decompositions
        are divided; all devices get all results. None: each device computes all of them. Inside shard_map, all devices
        must hold the same parameters: gradients whose types say that they vary over mesh_axis are refused.
      mesh: the mesh of the axis, where neither jax.set_mesh nor shard_map defines it. Under optax.inject_hyperparams it
        has to be one of static_args.

    Raises:
      ValueError: a number is out of range, axes overlap, or, in `update`, the shape of a gradient differs from that
        of its moments, or, inside shard_map with check_vma=True, a gradient varies over mesh_axis.
      TypeError: in `init` and `update`, a parameter is not floating; the message names it. `max_precond_dim` is traced:
        `optax.inject_hyperparams` needs static_args=("max_precond_dim",).

    Examples:
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm.optax
      >>> params = {"w": jnp.ones((4, 6)), "b": jnp.zeros(6)}
      >>> optimizer = jax_vbgemm.optax.soap(learning_rate=3e-3)
      >>> state = optimizer.init(params)
      >>> updates, state = optimizer.update(params, state, params)  # gradients in the place of the first `params`
      >>> float(jnp.abs(updates["w"]).max())
      0.0
    """
    check_number("soap", "weight_decay", weight_decay, 0)

    def decay(count: jax.Array) -> jax.Array:
        return jnp.where(count == 0, 0.0, weight_decay)

    decayed = optax.add_decayed_weights(decay, weight_decay_mask)
    if not isinstance(weight_decay, jax.core.Tracer) and weight_decay == 0:
        # The state is the same as with weight decay (which may be traced, by inject_hyperparams), but `update` does not
        # need params.
        decayed = optax.GradientTransformation(decayed.init, lambda updates, state, params=None: (updates, state))
    scaled = scale_by_soap(
        b1, b2, shampoo_beta, eps, correct_bias, precondition_frequency, max_precond_dim, precision,
        weight_dimension_numbers=weight_dimension_numbers, implementation=implementation,
        mesh_axis=mesh_axis, mesh=mesh,
    )  # fmt: skip
    return optax.chain(scaled, decayed, optax.scale_by_learning_rate(learning_rate))


def _gram_beta(shampoo_beta: Any, b2: Any) -> Any:
    """The decay rate of the factors: b2 where shampoo_beta is -1."""
    if isinstance(shampoo_beta, jax.core.Tracer):
        return jnp.where(shampoo_beta == -1, b2, shampoo_beta)
    if shampoo_beta == -1:
        return b2
    check_number("soap", "shampoo_beta", shampoo_beta, 0, 1)
    return shampoo_beta


def _bias_correction(step: jax.Array, b1: Any, b2: Any) -> jax.Array:
    """The joint bias correction of Adam's two averages."""
    t = jnp.maximum(step, 1).astype(jax.dtypes.canonicalize_dtype(float))  # 1 - b2^t is rounded once, to the moments'
    correction: jax.Array = jnp.sqrt(1 - b2**t) / (1 - b1**t)
    return correction


def _eigenvectors(matrices: Sequence[jax.Array], _: Any) -> list[jax.Array]:
    """The eigenvectors of symmetric matrices, by descending eigenvalue."""

    def of(stack: jax.Array) -> jax.Array:
        jitter = _JITTER * jnp.eye(stack.shape[-1], dtype=stack.dtype)[None]
        vectors: jax.Array = jnp.linalg.eigh(stack + jitter)[1]
        return vectors[..., ::-1]

    return by_shape(of, matrices)


def _orthogonal_factors(matrices: Sequence[jax.Array], _: Any) -> list[jax.Array]:
    """Q of the QR decompositions."""
    return by_shape(lambda stack: jnp.linalg.qr(stack)[0], matrices)


def _refreshed(
    gg: list[Factors],
    q: list[Factors],
    average: list[jax.Array],
    average_sq: list[jax.Array],
    options: Options,
    devices: Devices,
) -> Any:
    """The bases after a step of power iteration, and the moments expressed in them."""
    bases = flat(q)
    powers = batched_matmul(flat(gg), bases, **options)
    orders = [
        jnp.argsort(jnp.sum(basis * power, axis=-2), axis=-1, descending=True)
        for basis, power in zip(bases, powers, strict=True)
    ]
    sorted_powers = [
        jnp.take_along_axis(power, order[..., None, :], axis=-1) for power, order in zip(powers, orders, strict=True)
    ]
    new = unflat(q, devices.decomposed(_orthogonal_factors, sorted_powers))
    moved = multiply_both_sides(multiply_both_sides(average, q, options), new, options, transpose=True)
    squares = []
    for x, order in zip(average_sq, unflat(q, orders), strict=True):
        if order.left is not None:
            x = jnp.take_along_axis(x, order.left[..., :, None], axis=-2)
        if order.right is not None:
            x = jnp.take_along_axis(x, order.right[..., None, :], axis=-1)
        squares.append(x)
    return new, (moved, squares)
