"""Sums of products of components, and their derivatives, as one primitive.

Operands are arrays (rows, components, channels). A monomial multiplies a component of each operand, or as many as the
operand's power, with a constant, and is added to one component of the result; rows and channels do not mix:

  result[r, k, u] = sum over monomials (c, i, j, ..., k) of c * a[r, i, u] * b[r, j, u] * ...

The derivative by an operand of power p has that operand with power p - 1 and its tangent with power 1. Swapping a
component of the tangent with that of the result gives the transpose, so that derivatives of any order are the same
primitive with other monomials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jex_core
from jax.interpreters import ad, batching, mlir

from jax_vbgemm._src.matmul.reference import accumulator
from jax_vbgemm._src.util import compat
from jax_vbgemm._src.util.mapped import merged_rows

Integers = np.ndarray[Any, np.dtype[np.int32]]
ONE = -1  # in place of a component: the factor 1, where a monomial has fewer factors than the operand's power
PART = 31
"""The longest sum that XLA's GPU compiler gives to one thread; it gives a longer one to a block of threads. For MACE's
first layer (410 monomials, 512 rows of 128 channels) blocks took 46 us and 133 us for the gradient by x, single threads
86 and 279. For its second layer (94 monomials of a single result) blocks took 64 us, single threads 31 (H200, jax
0.11.2, commit 30ccf97). So sums of a single result are divided into such parts."""
WRITTEN_OUT = 128  # monomials of a sum that is written out on a CPU: 3 to 7 times as fast, but compiled in 12 ms each
IN_CACHE = 2048  # channels of all rows that are gathered at once on a CPU


@dataclass(frozen=True)
class Monomials:
    """The monomials of one sum.

    Attributes:
      powers: for each operand, how many of its components a monomial multiplies.
      sizes: the components of each operand, and of the result.
      components: (monomials, sum of powers + 1), those of each operand in turn, and that of the result. Those of one
        operand are sorted, and no two monomials are equal.
      constants: (monomials,).
    """

    powers: tuple[int, ...]
    sizes: tuple[int, ...]
    components: Integers = field(compare=False, repr=False)
    constants: np.ndarray[Any, Any] = field(compare=False, repr=False)
    key: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", self.components.tobytes() + self.constants.tobytes())

    def columns(self, operand: int) -> slice:
        """The columns of `components` that hold an operand's factors."""
        first = sum(self.powers[:operand])
        return slice(first, first + self.powers[operand])


def monomials(
    powers: Sequence[int], sizes: Sequence[int], components: Integers, constants: np.ndarray[Any, Any]
) -> Monomials:
    """Monomials of components in any order; equal ones are added."""
    components = np.array(components, np.int32).reshape(-1, sum(powers) + 1)
    first = 0
    for power in powers:
        components[:, first : first + power].sort(axis=1)
        first += power
    unique, place = np.unique(components, axis=0, return_inverse=True)
    summed = np.zeros(len(unique))
    np.add.at(summed, place.reshape(-1), constants)
    kept = summed != 0
    return Monomials(tuple(powers), tuple(sizes), np.ascontiguousarray(unique[kept]), summed[kept])


@lru_cache(maxsize=256)
def _derivative(of: Monomials, operand: int) -> Monomials:
    """By an operand, times its tangent: in the operand's place if its power is 1, and else as the last operand."""
    columns = range(*of.columns(operand).indices(of.components.shape[1]))
    factors = [of.components[:, column] != ONE for column in columns]
    if len(columns) == 1:
        return monomials(of.powers, of.sizes, of.components[factors[0]], of.constants[factors[0]])
    powers = [power - (i == operand) for i, power in enumerate(of.powers)]
    moved = [
        np.insert(np.delete(of.components, column, axis=1), -1, of.components[:, column], axis=1)[has]
        for column, has in zip(columns, factors, strict=True)
    ]
    constants = [of.constants[has] for has in factors]
    sizes = *of.sizes[:-1], of.sizes[operand], of.sizes[-1]
    return monomials((*powers, 1), sizes, np.concatenate(moved), np.concatenate(constants))


@lru_cache(maxsize=256)
def _transposed(of: Monomials, operand: int) -> Monomials:
    """The monomials of the derivative by an operand of power 1, whose place the cotangent takes."""
    column, components, sizes = of.columns(operand).start, of.components.copy(), list(of.sizes)
    components[:, [column, -1]] = components[:, [-1, column]]
    sizes[operand], sizes[-1] = sizes[-1], sizes[operand]
    return monomials(of.powers, sizes, components, of.constants)


def sum_of_monomials(operands: Sequence[jax.Array], of: Monomials) -> jax.Array:
    """The sum of constants times products of components of the operands, (rows, components, channels)."""
    result: jax.Array = sum_of_monomials_p.bind(*compat.unite_varying(operands), of=of)
    return result


sum_of_monomials_p = jex_core.Primitive("sum_of_monomials")


@sum_of_monomials_p.def_impl
def _impl(*operands: jax.Array, of: Monomials) -> Any:
    return compat.apply_primitive(sum_of_monomials_p, *operands, of=of)


@sum_of_monomials_p.def_abstract_eval
def _abstract_eval(*operands: Any, of: Monomials) -> Any:
    rows, _, channels = operands[0].shape
    return compat.shaped_array((rows, of.sizes[-1], channels), operands[0].dtype, operands)


def _values(*operands: jax.Array, of: Monomials) -> jax.Array:
    """Components are gathered monomial by monomial; the sum of a component of the result has as many as its longest."""
    dtype = operands[0].dtype
    wide = [operand.astype(accumulator(dtype)) for operand in operands]
    chosen = _by_result(of)
    step = PART if of.sizes[-1] == 1 else max(chosen.shape[1], 1)
    parts = [_part(wide, of, chosen[:, i : i + step]) for i in range(0, chosen.shape[1], step)]
    if not parts:
        rows, _, channels = operands[0].shape
        return jnp.zeros((rows, of.sizes[-1], channels), dtype)
    return sum(parts[1:], parts[0]).astype(dtype)


def _part(operands: Sequence[jax.Array], of: Monomials, chosen: Integers) -> jax.Array:
    """The sum of the monomials `chosen`, (components of the result, number)."""
    (rows, _, channels), wide, flat = operands[0].shape, operands[0].dtype, chosen.reshape(-1)
    constants = np.append(of.constants, 0.0)[flat]
    components = np.concatenate([of.components, np.zeros_like(of.components[:1])])[flat]
    product: Any = None if np.all(constants == 1) else jnp.asarray(constants, wide)[None, :, None]
    for i, operand in enumerate(operands):
        for component in components[:, of.columns(i)].T:
            factor = operand.at[:, np.maximum(component, 0)].get(mode="promise_in_bounds")
            if np.any(component == ONE):
                factor = jnp.where(jnp.asarray(component == ONE)[None, :, None], jnp.ones((), wide), factor)
            product = factor if product is None else product * factor
    return product if chosen.shape[1] == 1 else jnp.sum(product.reshape(rows, *chosen.shape, channels), axis=2)


def _by_result(of: Monomials) -> Integers:
    """(components of the result, as many monomials as the longest of its sums has): indices of monomials, or their
    number where a sum is shorter."""
    counts = np.bincount(of.components[:, -1], minlength=of.sizes[-1])
    order = np.argsort(of.components[:, -1], kind="stable")
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    table = np.full((of.sizes[-1], counts.max(initial=0)), len(order), np.int32)
    table[of.components[order, -1], place] = order
    return table


def _on_cpu(*operands: jax.Array, of: Monomials) -> jax.Array:
    """Long sums row by row, as many rows at once as keep the gathered factors in a cache; short ones written out."""
    rows, _, channels = operands[0].shape
    if len(of.constants) <= of.sizes[-1]:  # nothing is added up
        return _values(*operands, of=of)
    if len(of.constants) <= WRITTEN_OUT:
        return _written_out(*operands, of=of)
    at_once = max(IN_CACHE // max(channels, 1), 1) if compat.is_static(operands[0].shape) else None
    if at_once is None or rows <= at_once:
        return _values(*operands, of=of)
    of_row: Any = partial(_of_row, of=of)
    result: jax.Array = jax.lax.map(of_row, operands, batch_size=at_once)
    return result


def _of_row(operands: Sequence[jax.Array], of: Monomials) -> jax.Array:
    return _values(*(operand[None] for operand in operands), of=of)[0]


def _written_out(*operands: jax.Array, of: Monomials) -> jax.Array:
    """`_values` as a sum of products of slices."""
    dtype, (rows, _, channels) = operands[0].dtype, operands[0].shape
    wide = [operand.astype(accumulator(dtype)) for operand in operands]
    sums: list[Any] = [None] * of.sizes[-1]
    for components, constant in zip(of.components, of.constants, strict=True):
        product = None if constant == 1 else wide[0].dtype.type(constant)
        for i, operand in enumerate(wide):
            for component in components[of.columns(i)]:
                if component != ONE:
                    product = operand[:, component] if product is None else product * operand[:, component]
        k = components[-1]
        sums[k] = product if sums[k] is None else sums[k] + product
    zeros = jnp.zeros((rows, channels), wide[0].dtype)
    return jnp.stack([zeros if each is None else each for each in sums], axis=1).astype(dtype)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], of: Monomials) -> tuple[Any, Any]:
    y = sum_of_monomials_p.bind(*primals, of=of)
    terms = []
    for i, tangent in enumerate(tangents):
        if isinstance(tangent, ad.Zero):
            continue
        tangent, derivative = ad.instantiate_zeros(tangent), _derivative(of, i)
        operands = [*primals, tangent] if of.powers[i] > 1 else [*primals[:i], tangent, *primals[i + 1 :]]
        terms.append(sum_of_monomials_p.bind(*operands, of=derivative))
    if not terms:
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    return y, sum(terms[1:], terms[0])


def _transpose(cotangent: Any, *operands: Any, of: Monomials) -> list[Any]:
    (place,) = (i for i, operand in enumerate(operands) if ad.is_undefined_primal(operand))
    if isinstance(cotangent, ad.Zero):
        return [ad.Zero(x.aval.to_ct_aval()) if i == place else None for i, x in enumerate(operands)]
    given = [cotangent if i == place else x for i, x in enumerate(operands)]
    value = sum_of_monomials(given, _transposed(of, place))
    return [value if i == place else None for i in range(len(operands))]


ad.primitive_jvps[sum_of_monomials_p] = _jvp
ad.primitive_transposes[sum_of_monomials_p] = _transpose
batching.primitive_batchers[sum_of_monomials_p] = merged_rows(sum_of_monomials_p)
compat.register_nan_check(sum_of_monomials_p)
for _form, _platform in ((_values, None), (_on_cpu, "cpu")):
    mlir.register_lowering(sum_of_monomials_p, mlir.lower_fun(_form, multiple_results=False), platform=_platform)
