"""The public functions for groups with runtime sizes, and the checks of their arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src.epilogue import ACTIVATIONS, Activation, Epilogue, resolve_activation
from jax_vbgemm._src.matmul.options import check_options, checked_implementation, mixed_dtypes, result_dtype
from jax_vbgemm._src.matmul.precision import canonical_precision
from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.problem import LARGEST_SIZE
from jax_vbgemm._src.ragged import accumulate, composed
from jax_vbgemm._src.ragged.indices import clamp, reported
from jax_vbgemm._src.ragged.primitive import Ragged, bind
from jax_vbgemm._src.ragged.reference import rows_with_weights
from jax_vbgemm._src.ragged.scaled_factors import (
    checked_scaled,
    dtype_beside_scaled,
    dtype_of_scaled_product,
    is_mixed,
    is_narrow,
    precision_of_scaled_product,
)
from jax_vbgemm._src.scaled.scaled import Scaled
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.arguments import as_array, promotes, refuse_explicit_axes, shown
from jax_vbgemm._src.util.integers import is_integer, saturated


def ragged_dot(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    *,
    transpose_rhs: bool = False,
    bias: Any = None,
    activation: Activation = None,
    gated: bool = False,
    row_scale: Any = None,
    gather: Any = None,
    rhs_gradient: Any = None,
    undefined_rest: bool = False,
    implementation: str | None = None,
    group_size_hint: int | Sequence[int] | None = None,
) -> jax.Array:
    """Multiplies each row by the matrix of its group: `jax.lax.ragged_dot`, with runtime group sizes.

    Rows lie in the order of their groups: the first group_sizes[0] rows of lhs belong to group 0, the next
    group_sizes[1] to group 1, and so on. Row i of the result is

        row_scale[i] * activation(lhs[i] @ rhs[group of i] + bias[group of i])

    and zero if i lies after the last group. The host never reads the sizes: one compiled program serves all sizes.
    Derivatives of any order with respect to lhs, rhs, bias and row_scale, and vmap over any of the operands.

    >>> import jax.numpy as jnp
    >>> import jax_vbgemm as vb
    >>> lhs = jnp.arange(8.0).reshape(4, 2)
    >>> rhs = jnp.stack([jnp.eye(2), 10 * jnp.eye(2), 100 * jnp.eye(2)])
    >>> vb.ragged_dot(lhs, rhs, jnp.array([1, 0, 2]))
    Array([[  0.,   1.],
           [200., 300.],
           [400., 500.],
           [  0.,   0.]], dtype=float32)

    Args:
      lhs: (m, k), or (any number, k) with `gather`. Of two `Scaled` factors the result is bfloat16 unless
        preferred_element_type says otherwise. On GPUs of compute capability 9.0 two 8-bit floats, or int8 on both
        sides, are multiplied as they are, with `transpose_rhs` and with scales of (1, 128) or whole rows of lhs and of
        (1, 128, 128), whole columns or whole matrices of rhs, and summed in float32, 128 products at a time (of int8
        these sums are exact, as is the whole one where scales hold for all of K, below 131072); elsewhere they are
        widened before the product. Beside rows of bfloat16 or float16, `Scaled` weights of int8, int4 or float8_e4m3fn
        with `transpose_rhs` stay narrow in memory where groups have few rows (a decoding step of a mixture, which reads
        little but weights); a scale covers one or 128 columns, and all of K or 128 K elements. Other weights are
        widened.
      rhs: (g, k, n), or (g, n, k) where `transpose_rhs`; or a pair of such arrays, which stand for one with the columns
        of both side by side. On GPUs of compute capability 9.0 neither the pair nor its gradient is copied (for
        bfloat16 and float16; without `gated`, for multiples of 64 columns). Dtypes promote as in jnp.matmul. A float8
        or a 4-bit integer times another dtype gives the dtype that jax.lax.ragged_dot gives; both are converted before
        the product, to a dtype that holds the values of both.
      group_sizes: (g,) integers of any value: a negative size counts as 0, and rows from m on don't exist. The weights
        of a group without rows are never read. A NaN in one group's rows or weights, or in rows after the last group,
        does not reach the results of other groups.
      precision: as in jax.lax.dot; `jax.default_matmul_precision` counts. Of two `Scaled` 8-bit floats,
        "ANY_F8_ANY_F8_F32_FAST_ACCUM" (a jax.lax.DotAlgorithmPreset) lets a GPU's tensor cores add all of K with about
        14 bits, if there is one scale along K; otherwise they add 128 elements so, and these sums are added in float32.
      preferred_element_type: the result's dtype, as in jax.lax.dot.
      group_offset: an integer, () or (1,): the first group to which rhs and bias belong; group_sizes may then have any
        length. Rows of groups without weights are zeros. (One of many devices has a part of the experts, for example.)
      transpose_rhs: rhs holds transposed matrices; they are not copied.
      bias: (g, n), of a dtype that promotes to the result's.
      activation: one of `jax_vbgemm.ACTIVATIONS`, or JAX's function of that name, for real results.
      gated: rhs and bias hold two weights side by side, the gate first: (g, k, 2 n), or (g, 2 n, k) where
        `transpose_rhs`, and (g, 2 n). The result is row_scale * activation(gate) * up, where gate and up are the two
        halves of lhs[i] @ rhs[group of i] + bias[group of i]. (SwiGLU and GeGLU; on a GPU neither half is stored. A
        derivative stores both.)
      row_scale: (m,), of a dtype that promotes to that of the accumulator, in which the scaling is done: float32 for
        16-bit results. (A router's probability, for example.)
      gather: (m,) integers: lhs[gather[i]] stands for lhs[i]. An index outside of lhs is clamped to its first or last
        row; `jax.experimental.checkify.checkify` (with `user_checks`) reports it. On GPUs of compute capability 9.0,
        bfloat16 and float16 rows are gathered in the kernel when that is faster (on an H100: k below 4096 and at most
        2048 columns of rhs). Otherwise (other devices, gradients, exported programs without a `target`) they are
        copied first. The gradient of lhs is then XLA's scatter, which on a GPU adds in no fixed order. A pair
        (gather, slots) has a gradient with a fixed order: slots (rows of lhs, m / rows of lhs) is the inverse
        selection, that is, gather (in range) contains r at the places slots[r] and nowhere else. Other slots give a
        wrong gradient, and checkify reports them. (The `rows` and `slots` of a `jax_vbgemm.moe.Routing`.)
      rhs_gradient: a `jax.Ref` of the shape of rhs, which is one array, and of the accumulator's dtype (float32 for
        16-bit operands), to which a backward pass adds the gradient of rhs, in place. (Sums over micro-batches.) The
        result does not depend on it, except that an epilogue is computed from rounded products. The gradients of all
        operands stay what they are without it; under jit the ordinary gradient of rhs costs nothing if it is not used.
        Only gradients that flow through this product are accumulated: differentiate with respect to rhs, or to what
        lhs or rhs depend on. On GPUs of compute capability 9.0 the kernel of the gradient of bfloat16 or float16
        operands adds to the Ref itself. Derivatives are of first order and in reverse mode; JAX refuses others, and a
        vmap over operands while the Ref is not mapped (at axis 0).
      undefined_rest: whether rows of the result without weights (after the last group, or of groups without weights)
        may be left as they are in memory, and the same rows of the gradient of lhs (without `gather`): they hold
        anything, NaN too, so that what reads them has to select and not multiply by 0, in its gradients too; checkify's
        NaN checks may report them. Worth its while where most rows have no weights: a device's room for rows that other
        devices may send, for example.
      implementation: "kernel", "xla", or None for the best available. An explicit choice is never replaced.
      group_size_hint: the typical size of groups, or a sequence with the typical size of each group. It guides the
        choice of tiles and changes no result, except that it decides whether `Scaled` weights beside rows of 16 bits
        are widened: to the rows' dtype, in which a weight is rounded and may overflow.

    Returns:
      (m, n).

    Raises:
      ValueError: shapes don't fit, dtypes differ under strict promotion, an option is unknown, or a gated product has
        no activation; the message names the argument and both shapes.
      TypeError: an operand is not an array, sizes or offset are not integers, a flag is not a bool.
      NotImplementedError: implementation="kernel" if there is no kernel.
    """
    name = "ragged_dot"
    second = None
    scales: dict[str, jax.Array] = {}
    fast_accumulation = False
    if isinstance(rhs, Scaled) and rhs_gradient is not None:
        raise ValueError(f"{name}: rhs_gradient is for weights that have a gradient, but rhs is Scaled")
    if isinstance(rhs, tuple | list):
        if any(isinstance(array, Scaled) for array in rhs):
            raise TypeError(
                f"{name}: rhs is a pair with a Scaled: moe.gated_dot and moe.expert_mlp take one, two products"
            )
        rhs, second = _pair(name, rhs)
        if rhs_gradient is not None:
            raise ValueError(f"{name}: rhs_gradient is for one array rhs, but rhs is a pair")
    if isinstance(lhs, Scaled) or isinstance(rhs, Scaled):
        precision = canonical_precision(precision)
        check_options(name, precision, None)
        lhs, rhs = (
            checked_scaled(name, argument, x) if isinstance(x, Scaled) else as_array(name, argument, x)
            for argument, x in (("lhs", lhs), ("rhs", rhs))
        )
        precision, fast_accumulation = precision_of_scaled_product(name, ("lhs", "rhs"), lhs, rhs, precision)
        lhs, rhs, scales, preferred_element_type = _scaled_factors(
            name, lhs, rhs, preferred_element_type, transpose_rhs=bool(transpose_rhs)
        )
    if scales:
        out_dtype = preferred_element_type
    else:
        lhs, rhs, precision, out_dtype = factors(name, lhs, rhs, precision, preferred_element_type)
    group_sizes = sizes_argument(name, group_sizes)
    flags = {"transpose_rhs": transpose_rhs, "gated": gated, "undefined_rest": undefined_rest}
    for flag, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise TypeError(f"{name}: {flag} must be a bool, not {value!r}")
    if lhs.ndim != 2 or rhs.ndim != 3 or group_sizes.ndim != 1:
        raise ValueError(
            f"{name}: lhs must be (m, k), rhs (g, k, n) and group_sizes (g,), but they are {lhs.shape}, {rhs.shape} "
            f"and {group_sizes.shape}"
        )
    check_groups(name, rhs=rhs.shape, group_sizes=group_sizes.shape)
    selection = {} if gather is None else _selection(name, lhs, gather)
    m, (groups, *matrix) = (lhs if gather is None else selection["gather"]).shape[0], rhs.shape
    k, n = reversed(matrix) if transpose_rhs else matrix
    n = n if second is None else 2 * n
    if lhs.shape[1] != k:
        stored = ", transposed" if transpose_rhs else ""
        raise ValueError(
            f"{name}: lhs is {lhs.shape} but rhs is {rhs.shape}{stored}: inner dimensions {lhs.shape[1]} and {k} "
            "must match"
        )
    if group_offset is None and group_sizes.shape[0] != groups:
        raise ValueError(
            f"{name}: rhs is {rhs.shape} but group_sizes is {group_sizes.shape}: there must be a size for each of the "
            f"{groups} groups (a group_offset is for part of the groups)"
        )
    epilogue = Epilogue(
        bias=None if bias is None else "bias",
        activation=known_activation(name, activation, out_dtype),
        gated=bool(gated),
        row_scale=None if row_scale is None else "row_scale",
    )
    if gated and epilogue.activation is None:
        raise ValueError(f"{name}: a gated product needs an activation of its gate")
    if gated and n % 2:
        raise ValueError(f"{name}: rhs is {rhs.shape}: gate and up lie side by side, but {n} is odd")
    wide = accumulator(out_dtype)
    epilogue_operands: dict[str, jax.Array] = {}
    if bias is not None:
        epilogue_operands["bias"] = extra_operand(
            name, "bias", bias, (groups, n), "(g, 2 n)" if gated else "(g, n)", out_dtype
        )
    if row_scale is not None:
        epilogue_operands["row_scale"] = extra_operand(name, "row_scale", row_scale, (m,), "(m,)", wide)
    extras = ({} if second is None else {"second": second.astype(rhs.dtype)}) | scales
    if group_offset is not None:
        extras["group_offset"] = scalar_integer(name, "group_offset", group_offset)
    if rhs_gradient is not None:
        check_sums(name, "rhs_gradient", rhs_gradient, "rhs", rhs.shape, rhs.dtype)
    operands = {"lhs": lhs, "rhs": rhs, "group_sizes": group_sizes, **epilogue_operands, **extras, **selection}
    refuse_explicit_axes(name, operands.values(), list(operands).__getitem__)
    ragged = Ragged(
        out_dtype=np.dtype(out_dtype),
        groups=groups,
        transpose_rhs=bool(transpose_rhs),
        halves="none" if second is None else "columns",
        epilogue=epilogue,
        fast_accumulation=fast_accumulation,
        undefined_rest=bool(undefined_rest),
        extras=tuple(extras),
        precision=precision,
        hint=canonical_hint(name, group_size_hint, groups),
        implementation=checked_implementation(name, implementation),
    )
    if rhs_gradient is not None:
        known = rows_with_weights(group_sizes, extras.get("group_offset"), m, groups) if undefined_rest else None
        rows = composed.selected_rows(lhs, known=known, **selection) if selection else lhs
        return accumulate.product(
            ragged, rhs_gradient, rows, rhs, group_sizes, *epilogue_operands.values(), *extras.values()
        )
    after = None
    if jnp.issubdtype(out_dtype, jnp.complexfloating):
        after = operands.pop("row_scale", None)  # kernels scale rows of real results only; XLA scales complex ones
        ragged = ragged._replace(epilogue=ragged.epilogue._replace(row_scale=None))
    result = bind(list(operands.values()), ragged._replace(extras=(*extras, *selection)))
    if after is not None:
        known = rows_with_weights(group_sizes, extras.get("group_offset"), m, groups)
        result = jnp.where(known, after, jnp.zeros((), wide))[:, None] * result
    return result


def _scaled_factors(
    name: str, lhs: Any, rhs: Any, preferred: Any, *, transpose_rhs: bool
) -> tuple[Any, Any, dict[str, jax.Array], Any]:
    """Both factors, their scales, which the primitive takes, and the result's dtype. A factor with blocks that the
    primitive does not support, or next to an unscaled factor, is converted."""
    if not (isinstance(lhs, Scaled) and isinstance(rhs, Scaled)):
        check_options(name, None, preferred)
        if preferred is not None:
            preferred = jax.dtypes.canonicalize_dtype(preferred)
        argument, other = ("rhs", rhs) if isinstance(lhs, Scaled) else ("lhs", lhs)
        dtype = dtype_beside_scaled(name, argument, other.dtype)
        if transpose_rhs and other is lhs and is_mixed(dtype, rhs, preferred):
            preferred = dtype if preferred is None else preferred
            return lhs, rhs.values, {"rhs_scale": rhs.scales}, preferred
        lhs, rhs = (x.dequantized(dtype) if isinstance(x, Scaled) else x for x in (lhs, rhs))
        return lhs, rhs, {}, preferred
    preferred = dtype_of_scaled_product(name, preferred)
    if not is_narrow(lhs, rhs, transpose_rhs):
        return lhs.dequantized(), rhs.dequantized(), {}, preferred
    return lhs.values, rhs.values, {"lhs_scale": lhs.scales, "rhs_scale": rhs.scales}, preferred


def _pair(name: str, rhs: Sequence[Any]) -> tuple[jax.Array, jax.Array]:
    """Both arrays of a pair rhs."""
    if len(rhs) != 2:
        raise ValueError(f"{name}: rhs has {len(rhs)} arrays: it must be one array or a pair")
    first, second = (as_array(name, f"rhs[{i}]", x) for i, x in enumerate(rhs))
    if (first.shape, first.dtype) != (second.shape, second.dtype):
        raise ValueError(
            f"{name}: rhs[0] is {first.dtype}{first.shape} but rhs[1] is {second.dtype}{second.shape}: they must have "
            "one shape and dtype"
        )
    return first, second


def check_groups(name: str, **shapes: tuple[Any, ...]) -> None:
    """Raises if the number of groups, the first size of each argument's shape, is symbolic (jax.export)."""
    for argument, shape in shapes.items():
        if not compat.is_static(shape[:1]):
            raise ValueError(
                f"{name}: {argument} is {shape}: the number of groups must be static, but it is {shape[0]}"
            )


def check_sums(name: str, argument: str, sums: Any, weights: str, shape: tuple[int, ...], dtype: Any) -> None:
    """Raises unless `sums` is a Ref to which the gradient of weights of this shape and dtype can be added."""
    wide = accumulator(dtype)
    rule = f"a jax.Ref of {np.dtype(wide)}{shape}, for sums of the gradient of {weights}"
    if not isinstance(sums, jax.Ref):
        raise TypeError(f"{name}: {argument} must be {rule}, not {shown(sums)}")
    if not jnp.issubdtype(dtype, jnp.inexact):
        raise ValueError(f"{name}: {argument} is for products that have a gradient, but {weights} is {dtype}")
    if (sums.shape, sums.dtype) != (shape, wide):
        raise ValueError(f"{name}: {argument} is a Ref of {sums.dtype}{sums.shape}: it must be {rule}")


def _selection(name: str, lhs: jax.Array, gather: Any) -> dict[str, jax.Array]:
    """The indices of rows of lhs, in range, and the inverse selection if it is given."""
    pair = isinstance(gather, tuple)
    if isinstance(gather, list) and any(np.ndim(item) for item in gather):
        raise TypeError(f"{name}: gather is a list of arrays: a pair (gather, slots) must be a tuple")
    if pair and len(gather) != 2:
        raise ValueError(f"{name}: gather has {len(gather)} arrays: it must be one array or a pair")
    index = _integers(name, "gather", gather[0] if pair else gather)
    if index.ndim != 1:
        raise ValueError(f"{name}: gather is {index.shape} and lhs {lhs.shape}: they must be (m,) and (rows, k)")
    if lhs.shape[0] == 0 and index.shape[0] != 0:
        raise ValueError(f"{name}: gather is {index.shape} but lhs is {lhs.shape}: it has no row to be read")
    selection = {"gather": clamp(name, "gather", index, lhs.shape[0])[0]}
    if pair:
        slots = _integers(name, "slots", gather[1])
        if slots.ndim != 2 or slots.shape[0] != lhs.shape[0]:
            raise ValueError(
                f"{name}: slots is {slots.shape} but lhs is {lhs.shape}: it must be ({lhs.shape[0]}, terms)"
            )
        if compat.is_static((*slots.shape, *index.shape)) and slots.size != index.size:
            raise ValueError(
                f"{name}: slots is {slots.shape} but gather is {index.shape}: slots must name each place of gather once"
            )
        selection["slots"] = clamp(name, "slots", slots, index.shape[0])[0]
        if index.shape[0] != 0:
            rows = jnp.arange(lhs.shape[0], dtype=jnp.int32)
            misplaced = selection["gather"].at[selection["slots"]].get(mode="clip") != rows[:, None]
            missing = jnp.sort(selection["slots"].ravel()) != jnp.arange(index.shape[0], dtype=jnp.int32)
            selection["slots"] = reported(
                selection["slots"],
                jnp.sum(misplaced, dtype=jnp.int32) + jnp.sum(missing, dtype=jnp.int32),
                f"{name}: slots is not the inverse of gather: the gradient of lhs is wrong",
            )
    return selection


def factors(name: str, lhs: Any, rhs: Any, precision: Any, preferred: Any) -> tuple[jax.Array, jax.Array, Any, Any]:
    """Both operands in one dtype, the canonical precision, and the dtype of their products."""
    lhs, rhs = as_array(name, "lhs", lhs), as_array(name, "rhs", rhs)
    precision = canonical_precision(precision)
    check_options(name, precision, preferred)
    try:
        dtype, out_dtype = dtypes_of_product(lhs, rhs, precision, preferred)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{name}: lhs is {lhs.dtype}{lhs.shape} but rhs is {rhs.dtype}{rhs.shape}: {error}") from None
    return lhs.astype(dtype), rhs.astype(dtype), precision, out_dtype


def dtypes_of_product(lhs: Any, rhs: Any, precision: Any = None, preferred: Any = None) -> tuple[Any, Any]:
    """The dtype in which two operands are multiplied, and that of the result."""
    mixed = mixed_dtypes(lhs.dtype, rhs.dtype, precision, preferred)
    if mixed is not None:
        return mixed
    dtype = jnp.result_type(lhs, rhs)
    return dtype, result_dtype(dtype, dtype, precision, preferred)


def sizes_argument(name: str, value: Any) -> jax.Array:
    """Group sizes as int32 or int64. Larger sizes saturate, because no operand has more rows."""
    sizes = _integers(name, "group_sizes", value)
    if sizes.dtype in (np.int32, np.int64):
        return sizes
    if sizes.dtype in (np.uint32, np.uint64):
        sizes = jnp.minimum(sizes, jnp.asarray(LARGEST_SIZE, sizes.dtype))
    return sizes.astype(np.int32)


def _integers(name: str, argument: str, value: Any) -> jax.Array:
    array = as_array(name, argument, saturated(value))
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"{name}: {argument} is {array.dtype}{array.shape}: it must be integers")
    return array


def scalar_integer(name: str, argument: str, value: Any) -> jax.Array:
    """An integer array of rank 0, from an array of rank 0 or of shape (1,)."""
    array = _integers(name, argument, value)
    if array.shape not in ((), (1,)):
        raise ValueError(f"{name}: {argument} has shape {array.shape}: it must be () or (1,)")
    return array.reshape(())


def extra_operand(name: str, argument: str, value: Any, shape: tuple[Any, ...], rule: str, dtype: Any) -> jax.Array:
    array = as_array(name, argument, value)
    if array.shape != shape:
        raise ValueError(f"{name}: {argument} is {array.shape} but must be {rule}, {shape}")
    if array.dtype != dtype and not promotes(array, dtype):
        raise ValueError(f"{name}: {argument} is {array.dtype}, which does not promote to {np.dtype(dtype)}")
    return array.astype(dtype)


def known_activation(name: str, activation: Any, out_dtype: Any) -> str | None:
    """The name of an activation that the kernels apply."""
    known, function = resolve_activation(name, activation)
    if function is None:
        return None
    if known is None:
        raise ValueError(
            f"{name}: activation {activation!r} is none of {', '.join(map(repr, ACTIVATIONS))}: apply it to the result"
        )
    if not jnp.issubdtype(out_dtype, jnp.floating):
        raise ValueError(f"{name}: activation={known!r}, but the result is {out_dtype}: it must be real and floating")
    return known


def canonical_hint(name: str, hint: Any, groups: int) -> int | tuple[int, ...] | None:
    """The group_size_hint as a hashable value."""
    if hint is None:
        return None
    many = isinstance(hint, Sequence | np.ndarray)
    given = tuple(hint) if many else (hint,)
    if not all(map(is_integer, given)):
        raise TypeError(f"{name}: group_size_hint must be an integer or a sequence of integers, not {hint!r}")
    sizes = tuple(map(int, given))
    if any(size < 0 for size in sizes) or (many and len(sizes) != groups):
        raise ValueError(
            f"{name}: group_size_hint is {hint!r}: it must be one size, or one for each of the {groups} groups, none "
            "negative"
        )
    return sizes if many else sizes[0]
