"""The public functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from jax_vbgemm._src.epilogue import Activation
from jax_vbgemm._src.matmul.call import bind, with_windows
from jax_vbgemm._src.matmul.epilogues import with_epilogues
from jax_vbgemm._src.matmul.factors import paired, products
from jax_vbgemm._src.matmul.precision import canonical_precision, precision_name
from jax_vbgemm._src.matmul.scaled_products import has_scaled, scaled_gemm
from jax_vbgemm._src.matmul.sums import NAME, sums_of_products
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.planner import DeviceSpec, Plan, Planner, device_spec, kind_of, plan_problems, resolve_planner
from jax_vbgemm._src.problem import Problem, problems_of
from jax_vbgemm._src.util.arguments import refuse_arguments_of

AnyPlanner = str | Planner

EPILOGUE = ("Cs", "alpha", "beta", "bias", "activation")
"""The arguments of `batched_gemm` and `batched_matmul_sum` that `batched_matmul` lacks."""


@refuse_arguments_of("batched_gemm", *EPILOGUE)
def batched_matmul(
    As: Any,
    Bs: Any,
    *,
    transpose_a: Any = False,
    transpose_b: Any = False,
    symmetric: Any = False,
    into: Any = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    planner: AnyPlanner = "auto",
    implementation: str | None = None,
) -> Any:
    """Multiplies many matrices of different sizes, pair by pair, as one operation.

    The same as `jax.tree.map(jnp.matmul, As, Bs)` for operands of rank 2 and more, under every transformation
    (jit, grad, jvp, vmap, shard_map, remat, in any composition), except that no result is weakly typed.

    Args:
      As, Bs: pytrees of arrays with the same structure, usually lists. Leaf i is a product (..., m_i, k_i) x
        (..., k_i, n_i) whose leading dimensions broadcast. A leaf may be a `View` of an array, which is read in
        place. A `RaggedArray` is the tree of its members; the results are then a RaggedArray too. Any size is legal, 0
        and 1 included. Each pair's dtypes promote as in jnp.matmul; different pairs may have different dtypes. One
        array against a tree is the shared operand of all products: `batched_matmul(x, Ws)` is x @ W for every leaf W,
        where the call has x, and the gradient with respect to x, once. A shared array is never split into matrices. A
        shared array of rank 3 or more whose leading axis is as long as the other tree has leaves (and not 1) could be
        meant as a stack of matrices and is refused: write `[x] * n` or `list(x)`.
        A leaf may be `Scaled`, on one side or on both, in blocks of any size. Two of them have a bfloat16 result unless
        preferred_element_type says otherwise; one beside floats of 16 bits or more is converted to their dtype. On a
        GPU 8-bit numbers are multiplied as they are where scales hold for all of K, and by a kernel of `ragged_dot`
        where it has one: for scales in blocks along K, for weights alone in 8 or 4 bits, and for a single product, all
        with `transpose_b` and without `transpose_a`. All others are widened.
      transpose_a, transpose_b: swap the last two axes of the operand; a bool or a prefix pytree of bools.
      symmetric: the caller guarantees that result i is symmetric, as X X^T is. A kernel may then compute half of the
        result and store the transpose in the other half. A bool or a prefix pytree of bools. Derivatives are the same
        as without the flag.
      into: a tree of `View` with the structure of As, or a RaggedArray. Result i is written into view i and returned as
        that view of the updated buffer, whose other elements stay as they are. Views of one buffer (one array, given to
        each view) are updated together and may not overlap. If a leaf is None, the result is an array of its own.
      precision: as in jax.lax.dot; `jax.default_matmul_precision` counts.
      preferred_element_type: the results' dtype, as in jax.lax.dot.
      planner: a planner's name, an options object (`Coordinated(theta=128)`), or a callable
        (problems, device, catalogue) -> Plan. It also plans `Scaled` products that then leave the call, as the
        predicted times decide whether they do.
      implementation: "kernel", "xla" (one dot a product), or None for the best available. An explicit choice is never
        replaced.

    Returns:
      A pytree with the structure of As; leaf i is (..., m_i, n_i).

    Raises:
      ValueError: the structures differ, shapes don't fit, a symmetric result is not square, dtypes differ under strict
        promotion, a window reaches past its buffer or overlaps another one of `into`, an operand is sharded over an
        explicit mesh axis, a Scaled is beside integers or 8-bit floats, or an option is unknown; the message names the
        leaf and the rule.
      TypeError: a leaf is not an array, a flag not a bool, a planner not callable, or an option of a wrong type.
      NotImplementedError: implementation="kernel" if there is no kernel.

    Examples:
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm as vb
      >>> As = [jnp.ones((5, 7)), jnp.ones((100, 30))]
      >>> Bs = [jnp.ones((7, 3)), jnp.ones((30, 40))]
      >>> [C.shape for C in vb.batched_matmul(As, Bs)]
      [(5, 3), (100, 40)]

      One array for all products:

      >>> queries, values = vb.batched_matmul(jnp.ones((4, 10, 7)), [jnp.ones((7, 3)), jnp.ones((7, 9))])
      >>> queries.shape, values.shape
      ((4, 10, 3), (4, 10, 9))
    """
    return _gemm(
        "batched_matmul", As, Bs, {}, into, planner, implementation, transpose_a=transpose_a, transpose_b=transpose_b,
        symmetric=symmetric, precision=precision, preferred=preferred_element_type,
    )  # fmt: skip


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
    into: Any = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    planner: AnyPlanner = "auto",
    implementation: str | None = None,
) -> Any:
    """activation(alpha op(A) op(B) + beta C + bias) for many matrices of different sizes, in one pass.

    The GEMM of BLAS for a pytree of problems, with a bias and an activation. Differentiable in every argument. If C
    is donated, or not needed after the call, the result takes the memory of C.

    Args:
      As, Bs, and the options that are not listed here: as for `batched_matmul`.
      Cs: pytree with the structure of As, or None; leaf i has the shape of result i and a dtype that promotes to
        the dtype of result i.
      symmetric: as for `batched_matmul`. Both the products and the results must be symmetric: so is each C that is
        read, and there is no bias.
      alpha, beta: a number, a pytree of numbers with the structure of As, a 1-D array with one entry a problem, or a
        `View` of such an array or of one number, which is read in place; Python numbers or traced; cast to the
        accumulator's dtype. If beta is 0, C is not read, and where alpha is 0, the product does not count: NaN in C
        or in the product then does not reach the result.
      bias: None, or a pytree with the structure of As whose leaves may be None; leaf i broadcasts to the shape of
        result i.
      activation: one of `jax_vbgemm.ACTIVATIONS`, for real results, or a function. A kernel applies the named
        activations, and the functions of jax.nn that they stand for; XLA applies any other function after the kernel.

    Returns:
      A pytree with the structure of As; leaf i is (..., m_i, n_i).

    Raises:
      ValueError: as `batched_matmul`; also if beta is not 0 and there is no C, if alpha, beta, C or bias don't
        fit (a fraction does not fit an integer result, nor does an integer beyond the range of the accumulator, int32
        for int8; the sums themselves wrap around), where an activation's
        name is unknown, and where a symmetric result has a bias. The message names the leaf and the rule.
      TypeError: as `batched_matmul`; also if alpha or beta is not a number, or activation is neither a name nor a
        function.

    Examples:
      >>> import jax.numpy as jnp
      >>> import jax_vbgemm as vb
      >>> As, Bs = [jnp.ones((2, 3)), jnp.ones((1, 2))], [jnp.ones((3, 2)), jnp.ones((2, 1))]
      >>> Cs = [jnp.ones((2, 2)), jnp.ones((1, 1))]
      >>> [C.tolist() for C in vb.batched_gemm(As, Bs, Cs, alpha=2, beta=-1)]
      [[[5.0, 5.0], [5.0, 5.0]], [[3.0]]]
      >>> biases = [jnp.array([-9.0, 1.0]), None]
      >>> [C.tolist() for C in vb.batched_gemm(As, Bs, bias=biases, activation="relu")]
      [[[0.0, 4.0], [0.0, 4.0]], [[2.0]]]
    """
    epilogue = {"Cs": Cs, "alpha": alpha, "beta": beta, "bias": bias, "activation": activation}
    return _gemm(
        "batched_gemm", As, Bs, epilogue, into, planner, implementation, transpose_a=transpose_a,
        transpose_b=transpose_b, symmetric=symmetric, precision=precision, preferred=preferred_element_type,
    )  # fmt: skip


def _gemm(
    name: str, As: Any, Bs: Any, epilogue: Mapping[str, Any], into: Any, planner: AnyPlanner,
    implementation: str | None, **of_products: Any,
) -> Any:  # fmt: skip
    """The results of a function of this name. epilogue: the arguments of `with_epilogues`, or none."""
    if has_scaled(As, Bs):
        return scaled_gemm(
            name, As, Bs, into=into, planner=planner, implementation=implementation, **of_products, **epilogue
        )
    call = products(name, *paired(name, As, Bs), **of_products)
    if epilogue:
        call = with_epilogues(call, **epilogue)
    return bind(with_windows(call, into), planner, implementation)


def batched_matmul_sum(
    As: Any,
    Bs: Any,
    out: Any = None,
    *,
    segments: Any = None,
    Cs: Any = None,
    alpha: Any = 1,
    beta: Any = 0,
    bias: Any = None,
    activation: Activation = None,
    transpose_a: Any = False,
    transpose_b: Any = False,
    symmetric: Any = False,
    into: Any = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    planner: AnyPlanner = "auto",
    implementation: str | None = None,
) -> Any:
    """Sums of products: result j is activation(alpha sum of op(A_i) op(B_i) + beta C_j + bias_j) over its terms i.

    The terms of one result are one product with a longer K: added in the order in which they are given, in the
    accumulator's dtype, and rounded once. They may differ in K and in transposes. Differentiable in everything.

    Args:
      As, Bs: with `out`, pytrees of one structure, usually lists, with one leaf a term. With `segments`, lists or
        dicts of blocks, (..., m, k) and (..., k, n), each of which any number of terms may use.
      out: the results' indices, one integer a term; each from 0 to the largest must occur.
      segments: in place of `out`, a list or a dict with the terms of each result: a list of pairs, a key of As and a
        key of Bs each. {(1, 2): [("a", 0), ("b", 3)]} is {(1, 2): As["a"] @ Bs[0] + As["b"] @ Bs[3]}.
      Cs, alpha, beta, bias, activation: as for `batched_gemm`, applied to the sums: pytrees of these have the
        structure of the results, arrays of alphas and betas one entry a result.
      transpose_a, transpose_b: as for `batched_matmul`; with `segments`, a bool or one for each key of As (of Bs).
      symmetric: the caller guarantees that result j is symmetric; a bool or one for each result.
      into: as for `batched_matmul`; a tree with the structure of the results.
      precision, preferred_element_type, planner, implementation: as for `batched_matmul`.

    Returns:
      A list of results, or a pytree with the keys of `segments`.

    Raises:
      ValueError: as `batched_gemm`; also if the terms of one result differ in shape or dtype, if a result has no
        term, where `out` does not have one entry for each term, and where `segments` name a block that does not exist.
      TypeError: as `batched_gemm`.

    Examples:
      Four products, of which the first two and the last two are added up:

      >>> import jax.numpy as jnp
      >>> import jax_vbgemm as vb
      >>> As = [jnp.ones((2, k)) for k in (3, 1, 2, 5)]
      >>> Bs = [jnp.ones((k, n)) for k, n in ((3, 2), (1, 2), (2, 1), (5, 1))]
      >>> [C.tolist() for C in vb.batched_matmul_sum(As, Bs, [0, 0, 1, 1])]
      [[[4.0, 4.0], [4.0, 4.0]], [[7.0], [7.0]]]
    """
    if has_scaled(As, Bs):
        raise TypeError(f"{NAME}: As or Bs has a Scaled: batched_matmul and batched_gemm take Scaled factors")
    call = sums_of_products(
        As,
        Bs,
        out,
        segments,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        symmetric=symmetric,
        precision=precision,
        preferred=preferred_element_type,
    )
    call = with_epilogues(call, Cs, alpha, beta, bias, activation)
    return bind(with_windows(call, into), planner, implementation)


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

    Returns:
      A `Plan`.

    Raises:
      ValueError: a size is negative or above 2**31 - 1, a name or an option is unknown, or a planner returned an
        invalid plan.
      TypeError: a size is not an integer, or an entry of `problems` is neither a Problem nor a tuple.

    Examples:
      >>> import jax_vbgemm as vb
      >>> plan = vb.plan([(64, 784, 192), (96, 784, 192), vb.Problem(16, 784, 192, batch=4)], device="h100")
      >>> len(plan.choices)
      3
      >>> sum(len(block) for block in plan.blocks) == plan.num_tiles
      True
    """
    spec = backends.default_device() if device is None else device_spec(device)
    try:
        dtype = jnp.dtype(dtype).name
    except TypeError:
        dtype = str(dtype)  # kind_of raises, and names the dtypes that are known
    kind = kind_of(dtype, precision_name(canonical_precision(precision)), spec)
    return plan_problems(problems_of(problems), kind, spec, resolve_planner(planner))
