"""The public functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from jax_vbgemm._src import backends
from jax_vbgemm._src.matmul.activation import Activation
from jax_vbgemm._src.matmul.call import Call
from jax_vbgemm._src.matmul.precision import canonical_precision, precision_name
from jax_vbgemm._src.planner import DeviceSpec, Plan, Planner, device_spec, kind_of, plan_problems, resolve_planner
from jax_vbgemm._src.problem import Problem, problems_of

AnyPlanner = str | Planner


def batched_matmul(
    As: Any,
    Bs: Any,
    *,
    transpose_a: Any = False,
    transpose_b: Any = False,
    symmetric: Any = False,
    precision: Any = None,
    preferred_element_type: Any = None,
    planner: AnyPlanner = "auto",
    implementation: str | None = None,
) -> Any:
    """Multiplies many matrices of different sizes, pair by pair, as one operation.

    The same as `jax.tree.map(jnp.matmul, As, Bs)` for operands of rank 2 and more, under every transformation
    (jit, grad, jvp, vmap, shard_map, remat, in any composition); but that no result is weakly typed.

    Args:
      As, Bs: pytrees of arrays with the same structure, usually lists. Leaf i is a product (..., m_i, k_i) x
        (..., k_i, n_i) whose leading dimensions broadcast. Any size is legal, 0 and 1 included. Each pair's dtypes
        promote as in jnp.matmul; different pairs may have different dtypes.
      transpose_a, transpose_b: swap the last two axes of the operand; a bool or a prefix pytree of bools.
      symmetric: the caller's word that result i is symmetric, as X X^T is: a kernel may compute half of it and store
        the transpose in the other half. A bool or a prefix pytree of bools. Derivatives are those without it.
      precision: as in jax.lax.dot; `jax.default_matmul_precision` counts.
      preferred_element_type: the results' dtype, as in jax.lax.dot.
      planner: a planner's name, an options object (`Coordinated(theta=128)`), or a callable
        (problems, device, catalogue) -> Plan.
      implementation: "kernel", "xla" (one dot a product), or None for the best available. An explicit choice is never
        replaced.

    Returns:
      A pytree with the structure of As; leaf i is (..., m_i, n_i).

    Raises:
      ValueError: the structures differ, shapes don't fit, a symmetric result is not square, dtypes differ under strict
        promotion, or an option is unknown; the message names the leaf and the rule.
      TypeError: a leaf is not an array, a flag not a bool, a planner not callable, or an option of a wrong type.
      NotImplementedError: implementation="kernel" where there is no kernel.
    """
    call = Call("batched_matmul", As, Bs, transpose_a, transpose_b, symmetric, precision, preferred_element_type)
    return call.bind(planner, implementation)


def batched_gemm(
    As: Any,
    Bs: Any,
    Cs: Any = None,
    *,
    alpha: Any = 1,
    beta: Any = 0,
    bias: Any = None,
    activation: Activation = None,
    transpose_a: Any = False,
    transpose_b: Any = False,
    symmetric: Any = False,
    precision: Any = None,
    preferred_element_type: Any = None,
    planner: AnyPlanner = "auto",
    implementation: str | None = None,
) -> Any:
    """activation(alpha op(A) op(B) + beta C + bias) for many matrices of different sizes, in one pass.

    The GEMM of BLAS for a pytree of problems, with a bias and an activation. Differentiable in everything. Where C is
    donated (or not needed any more), the result takes its place.

    Args:
      As, Bs, and all options not named here: as for `batched_matmul`.
      Cs: pytree with the structure of As, or None; leaf i has the shape of result i and a dtype that promotes to its.
      symmetric: as for `batched_matmul`, of the products and of the results: a C that is read is symmetric too, and
        there is no bias.
      alpha, beta: a number, a pytree of numbers with the structure of As, or a 1-D array with one entry a problem;
        Python numbers or traced; cast to the accumulator's dtype. Where beta is 0, C is not read, and where alpha
        is 0, the product does not count: NaN there is fine.
      bias: pytree with the structure of As, or None, as may be its leaves; leaf i broadcasts to the shape of result i.
      activation: "relu", "gelu" (the tanh approximation), "silu", "tanh" or "sigmoid", for real results, or a function.
        The functions of jax.nn that mean the same as a name are done in the kernel too, all others after it.

    Raises:
      As `batched_matmul`; also ValueError where beta is not 0 and there is no C, where alpha, beta, C or bias don't
      fit (a fraction, or an integer beyond the dtype's range, does not fit an integer result), where an activation's
      name is unknown, and where a symmetric result has a bias; TypeError where alpha or beta is no number or activation
      neither a name nor a function. The message names the leaf and the rule.
    """
    call = Call("batched_gemm", As, Bs, transpose_a, transpose_b, symmetric, precision, preferred_element_type)
    call.add_epilogues(Cs, alpha, beta, bias, activation)
    return call.bind(planner, implementation)


def plan(
    problems: Sequence[Problem | tuple[int, ...]],
    *,
    dtype: Any = "float32",
    precision: Any = None,
    device: DeviceSpec | str | None = None,
    planner: AnyPlanner = "auto",
) -> Plan:
    """The plan that a call with these sizes gets: `print` it to see tiles, blocks, waves, occupancy and predicted time.

    Args:
      problems: Problem objects or plain (m, n, k) tuples.
      dtype: of the operands.
      precision: as for `batched_matmul`; a dot algorithm is planned as "highest".
      device: a DeviceSpec, a name such as "h100", or None for the device JAX would use.
      planner: as for `batched_matmul`.

    Raises:
      ValueError: a size is negative, or a name or an option is unknown, or a planner returned an incomplete plan.
      TypeError: a size is not an integer.
    """
    spec = backends.default_device() if device is None else device_spec(device)
    try:
        dtype = jnp.dtype(dtype).name
    except TypeError:
        dtype = str(dtype)  # kind_of says what is known
    kind = kind_of(dtype, precision_name(canonical_precision(precision)), spec)
    return plan_problems(problems_of(problems), kind, spec, resolve_planner(planner))
