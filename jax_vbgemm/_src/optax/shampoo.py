"""Shampoo with grafting, for all matrices together.

Anil et al., arXiv 2002.09018. Hyperparameters, the order of the steps and numerical results are those of
Google's distributed_shampoo (google-research, Apache-2.0; on PyPI as optax-shampoo).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jax_vbgemm._src.elementwise.addition import add_scaled
from jax_vbgemm._src.optax.decompositions import Devices
from jax_vbgemm._src.optax.hyperparameters import check_integer, check_number, static_integer
from jax_vbgemm._src.optax.inverse_roots import inverse_roots
from jax_vbgemm._src.optax.kronecker import (
    Factors,
    Leaf,
    Options,
    flat,
    grams,
    leaves_of,
    list_of,
    multiply_both_sides,
    tree_of,
    unflat,
)

GRAFT_TYPES = ("sgd", "adagrad", "rmsprop")


class ShampooState(NamedTuple):
    """Shampoo's state: trees of the parameters' structure; arrays of the shape of the folded matrix.

    statistics: sums or averages of G G^T and G^T G, a pair (left, right) of trees, with None if a parameter has no
    factor. preconditioners: their inverse roots.
    diagonal_statistics: the grafted optimizer's second moments; zeros of shape () where it has none.
    momentum, diagonal_momentum: the momentum of Shampoo, and that of the grafted optimizer.

    Examples:
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm.optax
      >>> state, _ = jax_vbgemm.optax.shampoo(0.1).init({"w": jnp.ones((4, 6))})
      >>> [factors["w"].shape for factors in state.preconditioners]
      [(4, 4), (6, 6)]
    """

    count: Any
    statistics: Any
    preconditioners: Any
    diagonal_statistics: Any
    momentum: Any
    diagonal_momentum: Any


def shampoo(
    learning_rate: Any,
    beta1: Any = 0.9,
    beta2: Any = 0.999,
    diagonal_epsilon: Any = 1e-10,
    matrix_epsilon: Any = 1e-6,
    weight_decay: Any = 0.0,
    start_preconditioning_step: Any = 5,
    preconditioning_compute_steps: Any = 1,
    statistics_compute_steps: Any = 1,
    graft_type: str = "sgd",
    nesterov: bool = True,
    exponent_override: int = 0,
    inverse_failure_threshold: Any = 0.1,
    moving_average_for_momentum: bool = False,
    max_precond_dim: int = 4096,
    precision: Any = jax.lax.Precision.HIGHEST,
    *,
    weight_dimension_numbers: Any = None,
    implementation: str | None = None,
    mesh_axis: Any = None,
    mesh: Any = None,
) -> optax.GradientTransformation:
    """Shampoo, L^(-1/4) G R^(-1/4) with the step size of a grafted optimizer, all matrices together.

    A step is one `batched_gram` for all statistics and two `batched_matmul` for the preconditioning. The inverse roots
    are computed by one coupled Newton iteration for all factors, with four calls per iteration for the fourth root.

    Parameters of rank 0 and 1, and those whose dimension numbers are None, are left to the grafted optimizer.
    Parameters of rank 3 and more are folded to matrices. Statistics are float32, or float64 for float64 parameters.

    Args:
      learning_rate: a number or a schedule.
      beta1: decay rate of the momentum. beta2: decay rate of the statistics; with 1 they are sums.
      diagonal_epsilon: added to the root of the grafted optimizer's second moment.
      matrix_epsilon: added to a factor's diagonal before its root, as a fraction of the largest eigenvalue.
      weight_decay: this times the parameter is added before the momentum.
      start_preconditioning_step: before this step, only the grafted optimizer is used.
      preconditioning_compute_steps, statistics_compute_steps: the number of steps from one computation to the next.
      graft_type: the optimizer whose step size is used: "sgd", "adagrad" or "rmsprop".
      nesterov: whether the momentum looks a step ahead.
      exponent_override: p of the roots F^(-1/p); 0: twice the number of the parameter's factors.
      inverse_failure_threshold: a root whose error is above this is discarded, and the last root stays.
      moving_average_for_momentum: whether updates are multiplied by 1 - beta1 before they enter the momentum.
      max_precond_dim: a dimension above this has no factor.
      precision, implementation: of the products, as for `batched_matmul`.
      weight_dimension_numbers: as for `soap`.
      mesh_axis, mesh: as for `soap`: the devices among which the inverse roots are divided.

    Raises:
      ValueError: graft_type is unknown, a number is out of range, axes overlap, `update` gets no params if there is
        weight decay, the shape of a gradient differs from that of its moments, or, inside shard_map with
        check_vma=True, a gradient varies over mesh_axis.
      TypeError: in `init` and `update`, a parameter is not floating; the message names it. `exponent_override` or
        `max_precond_dim` is traced: `optax.inject_hyperparams` needs them in its static_args.

    Examples:
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm.optax
      >>> params = {"w": jnp.ones((4, 6)), "b": jnp.ones(6)}
      >>> optimizer = jax_vbgemm.optax.shampoo(learning_rate=0.5, nesterov=False)
      >>> state = optimizer.init(params)
      >>> updates, state = optimizer.update(params, state, params)  # gradients in the place of the first `params`
      >>> updates["b"].tolist()
      [-0.5, -0.5, -0.5, -0.5, -0.5, -0.5]
    """
    if graft_type not in GRAFT_TYPES:
        raise ValueError(f"shampoo: graft_type = {graft_type!r} is unknown (known are {', '.join(GRAFT_TYPES)})")
    for name, value in (
        ("diagonal_epsilon", diagonal_epsilon),
        ("matrix_epsilon", matrix_epsilon),
        ("weight_decay", weight_decay),
        ("inverse_failure_threshold", inverse_failure_threshold),
    ):
        check_number("shampoo", name, value, 0)
    check_number("shampoo", "beta1", beta1, 0, 1)
    if isinstance(beta2, jax.core.Tracer) or beta2 != 1:
        check_number("shampoo", "beta2", beta2, 0, 1)
    check_integer("shampoo", "start_preconditioning_step", start_preconditioning_step, 0)
    check_integer("shampoo", "preconditioning_compute_steps", preconditioning_compute_steps, 1)
    check_integer("shampoo", "statistics_compute_steps", statistics_compute_steps, 1)
    exponent_override = static_integer("shampoo", "exponent_override", exponent_override, 0)
    max_precond_dim = static_integer("shampoo", "max_precond_dim", max_precond_dim, 1)
    method = _Shampoo(
        beta1=beta1,
        beta2=beta2,
        diagonal_epsilon=diagonal_epsilon,
        matrix_epsilon=matrix_epsilon,
        weight_decay=weight_decay,
        start_preconditioning_step=start_preconditioning_step,
        preconditioning_compute_steps=preconditioning_compute_steps,
        statistics_compute_steps=statistics_compute_steps,
        graft_type=graft_type,
        nesterov=nesterov,
        exponent_override=exponent_override,
        inverse_failure_threshold=inverse_failure_threshold,
        moving_average_for_momentum=moving_average_for_momentum,
        leaves=partial(leaves_of, "shampoo", numbers=weight_dimension_numbers, most=max_precond_dim),
        products={"precision": precision, "implementation": implementation},
        devices=Devices("shampoo", mesh_axis, mesh),
    )
    transformation = optax.GradientTransformation(method.init, method.update)
    return optax.chain(transformation, optax.scale_by_learning_rate(learning_rate))


@dataclass(frozen=True)
class _Shampoo:
    """The checked arguments of `shampoo`, and the two functions of its transformation."""

    beta1: Any
    beta2: Any
    diagonal_epsilon: Any
    matrix_epsilon: Any
    weight_decay: Any
    start_preconditioning_step: Any
    preconditioning_compute_steps: Any
    statistics_compute_steps: Any
    graft_type: str
    nesterov: bool
    exponent_override: int
    inverse_failure_threshold: Any
    moving_average_for_momentum: bool
    leaves: Callable[..., list[Leaf]]
    products: Options
    devices: Devices

    def init(self, params: Any) -> ShampooState:
        structure: Any = jax.tree.structure(params)
        found = self.leaves("params", params)

        def factors(scale: Any) -> Factors:
            def make(shape: tuple[int, ...], dtype: Any) -> jax.Array:
                return jnp.broadcast_to(jnp.asarray(scale, dtype) * jnp.eye(shape[-1], dtype=dtype), shape)

            return tree_of(structure, [leaf.factors(make) for leaf in found])

        def zeros(*, whole: bool = True) -> Any:
            return structure.unflatten([jnp.zeros(leaf.shape if whole else (), leaf.wide) for leaf in found])

        diagonal = zeros(whole=self.graft_type != "sgd")
        count = jnp.zeros([], jnp.int32)
        return ShampooState(count, factors(self.matrix_epsilon), factors(1), diagonal, zeros(), zeros())

    def update(self, updates: Any, state: ShampooState, params: Any = None) -> tuple[Any, ShampooState]:
        structure: Any = jax.tree.structure(updates)
        found = self.leaves("updates", updates, params=params, moments=state.momentum)
        self.devices.refuse_slices(found)
        gradients = [leaf.of(leaf.x) for leaf in found]
        statistics, roots = list_of(structure, state.statistics), list_of(structure, state.preconditioners)
        diagonal, momentum, graft_momentum = (structure.flatten_up_to(x) for x in state[3:])
        statistics = self._new_statistics(gradients, statistics, state.count)
        roots = self._new_roots(statistics, roots, state.count)
        diagonal, grafted = _grafted(self.graft_type, gradients, diagonal, self.beta2, self.diagonal_epsilon)
        moves = [
            x * (_norm(step) / (_norm(x) + 1e-16)) if any(leaf.sides) else step
            for leaf, x, step in zip(found, multiply_both_sides(gradients, roots, self.products), grafted, strict=True)
        ]
        if isinstance(self.weight_decay, jax.core.Tracer) or self.weight_decay != 0:
            if params is None:
                raise ValueError("shampoo: update needs params where there is weight decay")
            weights = [leaf.of(p) for leaf, p in zip(found, structure.flatten_up_to(params), strict=True)]
            moves, grafted = (add_scaled(weights, x, self.weight_decay, 1) for x in (moves, grafted))
        weight = 1 - self.beta1 if self.moving_average_for_momentum else 1
        momentum = add_scaled(moves, momentum, weight, self.beta1)
        graft_momentum = add_scaled(grafted, graft_momentum, weight, self.beta1)
        started = state.count >= self.start_preconditioning_step

        def used(ours: list[jax.Array], grafted_updates: list[jax.Array]) -> list[jax.Array]:
            return [jnp.where(started, *pair) for pair in zip(ours, grafted_updates, strict=True)]

        totals = used(momentum, graft_momentum)
        if self.nesterov:
            steps = used(moves, grafted)
            totals = add_scaled(steps, totals, weight, self.beta1)
        results = [leaf.back(x) for leaf, x in zip(found, totals, strict=True)]
        factors = (tree_of(structure, statistics), tree_of(structure, roots))
        moments = (structure.unflatten(x) for x in (diagonal, momentum, graft_momentum))
        return structure.unflatten(results), ShampooState(optax.safe_increment(state.count), *factors, *moments)

    def _new_statistics(self, gradients: list[jax.Array], statistics: list[Factors], count: jax.Array) -> list[Factors]:
        def compute() -> list[jax.Array]:
            return flat(grams(gradients, statistics, _new_term_factor(self.beta2), self.beta2, self.products))

        return unflat(statistics, _every_steps(self.statistics_compute_steps, count, compute, flat(statistics)))

    def _new_roots(self, statistics: list[Factors], roots: list[Factors], count: jax.Array) -> list[Factors]:
        """The inverse roots of the statistics; where a root's error is too large, the last root stays."""
        last = flat(roots)

        def good_roots(matrices: Sequence[jax.Array], power: Any, ridge: Any, threshold: Any) -> list[jax.Array]:
            """The roots, with NaN for those whose error is too large."""
            values, errors = inverse_roots(matrices, [power] * len(matrices), ridge, self.products)
            is_accurate = [error < threshold for error in errors]  # false for NaN
            return [jnp.where(ok[..., None, None], x, jnp.nan) for ok, x in zip(is_accurate, values, strict=True)]

        def compute() -> list[jax.Array]:
            powers = [self.exponent_override or 2 * len(flat([pair])) for pair in roots]
            old_roots: list[Any] = flat(
                [Factors(*(p if f is not None else None for f in pair)) for pair, p in zip(roots, powers, strict=True)]
            )
            extras = self.matrix_epsilon, self.inverse_failure_threshold
            values = self.devices.decomposed(good_roots, flat(statistics), old_roots, extras)
            return [jnp.where(jnp.isnan(x), old, x) for x, old in zip(values, last, strict=True)]

        return unflat(roots, _every_steps(self.preconditioning_compute_steps, count, compute, last))


def _new_term_factor(beta: Any) -> Any:
    """The factor of an average's new term: 1 - beta, or 1 for a sum (beta = 1)."""
    return jnp.where(beta == 1, 1.0, 1 - beta) if isinstance(beta, jax.Array) else 1 - beta or 1


def _every_steps(
    steps: Any, count: jax.Array, compute: Callable[[], list[jax.Array]], kept: list[jax.Array]
) -> list[jax.Array]:
    """compute() in every `steps`-th step, and the old values in all other steps."""
    if isinstance(steps, int) and steps == 1:
        return compute()
    values: list[jax.Array] = jax.lax.cond(count % steps == 0, compute, lambda: kept)
    return values


def _grafted(
    graft_type: str, gradients: list[jax.Array], diagonal: list[jax.Array], beta2: Any, epsilon: Any
) -> tuple[list[jax.Array], list[jax.Array]]:
    """The grafted optimizer's second moments and its step, without momentum and learning rate."""
    if graft_type == "sgd":
        return diagonal, gradients
    decay = 1 if graft_type == "adagrad" else beta2
    diagonal = add_scaled([g * g for g in gradients], diagonal, _new_term_factor(decay), decay)
    steps = [g / (jnp.sqrt(d) + jnp.asarray(epsilon, d.dtype)) for g, d in zip(gradients, diagonal, strict=True)]
    return diagonal, steps


def _norm(x: jax.Array) -> jax.Array:
    """The Frobenius norm of each matrix."""
    norms: jax.Array = jnp.linalg.norm(x, axis=(-2, -1), keepdims=True)
    return norms
