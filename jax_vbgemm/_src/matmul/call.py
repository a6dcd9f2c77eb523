"""One call on its way to the primitive: what the user gave is checked, and what is wrong with it is named."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_vbgemm._src import compat
from jax_vbgemm._src.matmul import reference
from jax_vbgemm._src.matmul.activation import Activation, resolve_activation
from jax_vbgemm._src.matmul.precision import canonical_precision, precision_name
from jax_vbgemm._src.matmul.primitive import Epilogue, Scalar, Term, contract, sizes_of
from jax_vbgemm._src.planner import Planner, resolve_planner
from jax_vbgemm._src.structure import difference


class Call:
    """One call on its way to the primitive: checked operands, terms and epilogues."""

    def __init__(
        self,
        name: str,
        As: Any,
        Bs: Any,
        transpose_a: Any,
        transpose_b: Any,
        symmetric: Any,
        precision: Any,
        preferred: Any,
    ) -> None:
        self._shared: str | None
        As, Bs, self._shared = _with_shared_operand(name, As, Bs)
        self.name, self.As, self.Bs = name, As, Bs
        lhs, rhs, self.structure = _paired_leaves(name, As, Bs)
        self.precision = canonical_precision(precision)
        check_options(name, self.precision, preferred)
        transposes = zip(
            _flags(name, "transpose_a", transpose_a, ("As", As), len(lhs)),
            _flags(name, "transpose_b", transpose_b, ("Bs", Bs), len(rhs)),
            strict=True,
        )
        self.symmetric = _flags(name, "symmetric", symmetric, ("As", As), len(lhs))
        self.operands: list[jax.Array] = []
        self._made: dict[tuple[str, int, Any], int] = {}
        self._converted: dict[tuple[int, Any], jax.Array] = {}
        self.terms: list[Term] = []
        self.shapes: list[tuple[int, ...]] = []
        self.dtypes: list[Any] = []
        self.epilogues: list[Epilogue] = []
        self.after: list[Callable[[jax.Array], jax.Array] | None] = []  # what the kernel does not know, one a result
        for index, (a, b, flags) in enumerate(zip(lhs, rhs, transposes, strict=True)):
            term = Term(2 * index, 2 * index + 1, index, *flags, symmetric=self.symmetric[index])
            try:
                if a.ndim < 2 or b.ndim < 2:
                    raise ValueError("both need rank 2 or more")
                sizes = sizes_of(a.shape, b.shape, term)
                if term.symmetric and compat.is_static((sizes.m, sizes.n)) and sizes.m != sizes.n:
                    raise ValueError(f"a symmetric result must be square, but this one is {sizes.m} x {sizes.n}")
                if a.dtype != b.dtype and not (preferred is not None and _is_float8(a, b)):
                    dtype = jnp.result_type(a, b)
                    a, b = self._as_dtype(a, dtype), self._as_dtype(b, dtype)
                default_float = jax.dtypes.canonicalize_dtype(float)
                self.dtypes.append(result_dtype(a.dtype, b.dtype, self.precision, preferred, default_float))
            except (ValueError, TypeError) as error:
                a_name, b_name = self.leaf(("As", As), index), self.leaf(("Bs", Bs), index)
                transposed = "".join(
                    f", {x} transposed" for x, flag in zip((a_name, b_name), flags, strict=True) if flag
                )
                raise type(error)(
                    f"{name}: {a_name} is {_describe(a, b)} but {b_name} is {_describe(b, a)}{transposed}: {error}"
                ) from None
            self._refuse_explicit_axes(functools.partial(self.leaf, ("As", As), index), a)
            self._refuse_explicit_axes(functools.partial(self.leaf, ("Bs", Bs), index), b)
            self.operands += [a, b]
            self.terms.append(term)
            self.shapes.append((*sizes.batch, sizes.m, sizes.n))

    def leaf(self, tree: tuple[str, Any], index: int) -> str:
        """As[3], Bs['w']: how the user would write leaf `index`; just As where one array stands for all leaves."""
        if tree[0] == self._shared:
            return tree[0]
        return tree[0] + jax.tree_util.keystr(jax.tree.leaves_with_path(tree[1])[index][0])

    def result(self, index: int) -> str:
        """result[3], result['w']."""
        return self.leaf(("result", self.As), index)

    def _as_dtype(self, operand: jax.Array, dtype: Any) -> jax.Array:
        """The operand as `dtype`: one conversion, hence one operand of the call, for all leaves that are this array."""
        if operand.dtype == dtype:
            return operand
        key = id(operand), dtype
        if key not in self._converted:
            self._converted[key] = operand.astype(dtype)
        return self._converted[key]

    def _refuse_explicit_axes(self, where: Callable[[], str], operand: jax.Array) -> None:
        axes = compat.explicit_axes(operand)
        if axes:
            raise ValueError(
                f"{self.name}: {where()} is sharded over the explicit mesh axes {', '.join(map(repr, axes))}: "
                "replicate it with jax.sharding.reshard, or use jax.shard_map"
            )

    def bind(self, planner: str | Planner, implementation: str | None) -> Any:
        implementation = checked_implementation(self.name, implementation)
        planner = resolve_planner(planner)
        # Nothing can be planned for symbolic dimensions (jax.export).
        by_plan = implementation == "kernel" or all(compat.is_static(x.shape) for x in self.operands)
        dtypes = dict(enumerate(x.dtype for x in self.operands))
        dtypes |= {position: dtype for (_, _, dtype), position in self._made.items()}

        def run(operands: list[jax.Array]) -> list[jax.Array]:
            # One array stays one: `contract` passes equal operands once.
            cast = [
                x if x.dtype == dtypes[position] else x.astype(dtypes[position]) for position, x in enumerate(operands)
            ]
            if not by_plan:
                return reference.results(cast, self.terms, self.dtypes, self.epilogues, self.precision)
            return contract(
                cast,
                self.terms,
                self.dtypes,
                epilogues=self.epilogues,
                precision=self.precision,
                planner=planner,
                implementation=implementation,
            )

        results = list(_unchecked(run, self.epilogues)(self.operands))
        for index, function in enumerate(self.after):
            results[index] = results[index] if function is None else function(results[index])
        return jax.tree.unflatten(self.structure, results)

    def add_epilogues(self, Cs: Any, alpha: Any, beta: Any, bias: Any, activation: Activation) -> None:
        name, function = resolve_activation(self.name, activation)
        in_kernel = [name if jnp.issubdtype(dtype, jnp.floating) else None for dtype in self.dtypes]
        if function is not None:
            self.after = [None if known else function for known in in_kernel]
        alphas, betas = self._scalars("alpha", alpha), self._scalars("beta", beta)
        sources, biases = self._leaves("Cs", Cs), self._leaves("bias", bias)
        epilogues = []
        for index, dtype in enumerate(self.dtypes):
            if biases[index] is not None and self.symmetric[index]:
                raise ValueError(f"{self.name}: {self.leaf(('bias', self.As), index)} is added to a symmetric result")
            if isinstance(activation, str) and not in_kernel[index]:
                raise ValueError(
                    f"{self.name}: activation={activation!r}, but {self.result(index)} is {dtype}: it must be real and "
                    "floating"
                )
            source = None if sources[index] is None else self._addend("Cs", index, sources[index], exact=True)
            addend = None if biases[index] is None else self._addend("bias", index, biases[index], exact=False)
            if source is None and not _is_zero(betas[index]):
                where = "Cs is None" if Cs is None else f"{self.leaf(('Cs', self.As), index)} is None"
                raise ValueError(f"{self.name}: beta must be the number 0 where there is no C, but {where}")
            epilogues.append(
                Epilogue(
                    self._scalar("alpha", index, alphas[index]),
                    self._scalar("beta", index, betas[index]),
                    None if source is None or _is_zero(betas[index]) else self._operand(*source),
                    None if addend is None else self._operand(*addend),
                    in_kernel[index],
                )
            )
        if any(epilogue != Epilogue() for epilogue in epilogues):
            self.epilogues = epilogues

    def _leaves(self, option: str, tree: Any) -> list[Any]:
        """A leaf of the option for each problem; None where there is none."""
        if tree is None:
            return [None] * len(self.dtypes)
        try:
            leaves: list[Any] = self.structure.flatten_up_to(tree)
        except ValueError:
            found = difference("As", self.As, option, tree, prefix=True)
            raise ValueError(f"{self.name}: {option} must have the structure of As: {found}") from None
        return leaves

    def _scalars(self, option: str, value: Any) -> list[Any]:
        """One number a problem: a Python number, an array of rank 0, or (array of rank 1, index)."""
        count = len(self.dtypes)
        value = _plain_number(value)
        if isinstance(value, numbers.Number):
            return [value] * count
        if isinstance(value, np.ndarray | jax.Array):
            if isinstance(value, jax.Array):
                self._refuse_explicit_axes(lambda: option, value)
            if value.ndim == 0:
                return [value] * count
            if value.shape != (count,):
                raise ValueError(
                    f"{self.name}: {option} has shape {value.shape}, but there are {count} problems: one entry for each"
                )
            return [_plain_number(value[i]) if isinstance(value, np.ndarray) else (value, i) for i in range(count)]
        return [_plain_number(leaf) for leaf in self._leaves(option, value)]

    def _scalar(self, option: str, index: int, value: Any) -> Scalar:
        """A number for problem `index`, as the primitive takes it."""
        array, element = value if isinstance(value, tuple) else (value, None)

        def where() -> str:
            return self.leaf((option, self.As), index) if element is None else f"{option}[{index}]"

        dtype = reference.accumulator(self.dtypes[index])
        is_array = isinstance(array, jax.Array)
        if not is_array and not isinstance(array, numbers.Number):
            raise TypeError(f"{self.name}: {where()} must be a number, not {array!r}")
        if is_array and element is None and array.ndim != 0:
            raise ValueError(f"{self.name}: {where()} has shape {array.shape}: it must be a number")
        is_complex = jnp.iscomplexobj(array) if is_array else isinstance(array, complex)
        if is_complex and not jnp.issubdtype(dtype, jnp.complexfloating):
            raise ValueError(f"{self.name}: {where()} is complex, but {self.result(index)} is {self.dtypes[index]}")
        if is_array and not jnp.issubdtype(dtype, jnp.inexact) and not jnp.issubdtype(array.dtype, jnp.integer):
            raise ValueError(f"{self.name}: {where()} is {array.dtype}, but {self.result(index)} is {dtype}")
        if not is_array:
            try:
                return _number(array, dtype)
            except ValueError as error:
                given, wanted = _shown(array), self.dtypes[index]
                raise ValueError(
                    f"{self.name}: {where()} is {given}, but {self.result(index)} is {wanted}{error}"
                ) from None
        return self._operand((option, id(array), dtype), array.reshape(-1)), element or 0

    def _addend(self, option: str, index: int, value: Any, *, exact: bool) -> tuple[tuple[str, int, Any], jax.Array]:
        """The operand that C or a bias becomes, as `_operand` takes it."""

        def where() -> str:
            return self.leaf((option, self.As), index)

        array = value if isinstance(value, jax.Array) else as_array(self.name, where(), value)
        shape, dtype = self.shapes[index], self.dtypes[index]
        fits = array.shape == shape if exact else _broadcasts(array.shape, shape)
        if not fits:
            rule = "have that shape" if exact else "broadcast to that"
            raise ValueError(
                f"{self.name}: {where()} is {array.shape} but {self.result(index)} is {shape}: it must {rule}"
            )
        if array.dtype != dtype and not promotes(array, dtype):
            raise ValueError(f"{self.name}: {where()} is {array.dtype}, which does not promote to {dtype}")
        return (option, id(value), dtype), array

    def _operand(self, key: tuple[str, int, Any], array: jax.Array) -> int:
        """One operand for one array, however many problems name it; it becomes the dtype that the key ends in."""
        if key not in self._made:
            self._made[key] = len(self.operands)
            self.operands.append(array)
        return self._made[key]


def _unchecked(run: Callable[..., Any], epilogues: list[Epilogue]) -> Callable[..., Any]:
    """`run` for arguments that may hold NaN which its results don't, as C may where beta is 0: JAX's checkers
    (jax_debug_nans, jax_debug_infs) then see the results alone, not what becomes of C on the way."""
    checked = jax.config.jax_debug_nans or jax.config.jax_debug_infs  # type: ignore[attr-defined]
    return jax.jit(run) if checked and any(epilogue.source is not None for epilogue in epilogues) else run


def checked_implementation(name: str, implementation: Any) -> str | None:
    if implementation not in (None, "kernel", "xla"):
        raise ValueError(f"{name}: implementation must be None, 'kernel' or 'xla', not {implementation!r}")
    chosen: str | None = implementation
    return chosen


def check_options(name: str, precision: Any, preferred: Any) -> None:
    try:
        precision_name(precision)
        np.dtype(preferred)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{name}: {error}") from None


def _number(value: Any, dtype: Any) -> complex | float:
    """A number as results of `dtype` take it: integers keep all their digits. ValueError says what is wrong."""
    if isinstance(value, complex):
        return value
    if jnp.issubdtype(dtype, jnp.inexact):
        try:
            return float(value)
        except OverflowError:
            raise ValueError(": it is beyond the range of float64") from None
    if not (value.denominator == 1 if isinstance(value, numbers.Rational) else float(value).is_integer()):
        raise ValueError("")
    if np.dtype(dtype).kind == "b":
        return int(value)
    limits = jnp.iinfo(dtype)  # type: ignore[no-untyped-call]
    if not int(limits.min) <= int(value) <= int(limits.max):
        raise ValueError(f": it must lie in [{limits.min}, {limits.max}]")
    return int(value)


def _shown(number: Any) -> str:
    """A number for a message; Python refuses to print integers of thousands of digits."""
    is_long = isinstance(number, int) and abs(number) >= 10**30
    return f"an integer of {number.bit_length()} bits" if is_long else str(number)


def _is_zero(value: Any) -> bool:
    return isinstance(value, int | float | complex) and value == 0


def _plain_number(value: Any) -> Any:
    """A NumPy number or array of rank 0 as a Python number; anything else as it is."""
    return value.item() if isinstance(value, np.ndarray | np.generic) and value.ndim == 0 else value


def promotes(array: jax.Array, dtype: Any) -> bool:
    try:
        return bool(jnp.result_type(array, jnp.zeros((), dtype)) == dtype)
    except ValueError:  # strict promotion
        return False


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    return len(shape) <= len(target) and all(
        size in (1, full) for size, full in zip(shape[::-1], target[::-1], strict=False)
    )


def _with_shared_operand(name: str, As: Any, Bs: Any) -> tuple[Any, Any, str | None]:
    """Both operands as trees, and the name of the one that was an array against a tree and stands for all leaves."""
    lone_a, lone_b = (jax.tree_util.all_leaves([tree]) for tree in (As, Bs))
    if lone_a == lone_b:
        return As, Bs, None
    which, array, other, tree = ("As", As, "Bs", Bs) if lone_a else ("Bs", Bs, "As", As)
    if tree is None:
        raise ValueError(f"{name}: {other} is None, but {which} is an array")
    array, leaves = as_array(name, which, array), jax.tree.leaves(tree)
    if array.ndim > 2 and array.shape[0] == len(leaves) > 1:
        raise ValueError(
            f"{name}: {which} is one array of shape {tuple(array.shape)} against the {len(leaves)} leaves of {other}: "
            f"give a tree of the same structure, of {len(leaves)} times the array if all of it belongs to each leaf "
            "([x] * n), of its entries if entry i belongs to leaf i (list(x))"
        )
    repeated = jax.tree.unflatten(jax.tree.structure(tree), [array] * len(leaves))
    return (repeated, tree, which) if lone_a else (tree, repeated, which)


def _paired_leaves(name: str, As: Any, Bs: Any) -> tuple[list[jax.Array], list[jax.Array], Any]:
    lhs, rhs = jax.tree.leaves(As), jax.tree.leaves(Bs)
    structure: Any = jax.tree.structure(As)
    other: Any = jax.tree.structure(Bs)
    if structure != other:
        raise ValueError(f"{name}: As and Bs must have the same structure: {difference('As', As, 'Bs', Bs)}")

    def arrays(tree_name: str, tree: Any, leaves: list[Any]) -> list[jax.Array]:
        if all(isinstance(leaf, jax.Array) for leaf in leaves):
            return leaves
        paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(tree)]
        return [as_array(name, tree_name + path, leaf) for path, leaf in zip(paths, leaves, strict=True)]

    return arrays("As", As, lhs), arrays("Bs", Bs, rhs), structure


def as_array(name: str, where: str, leaf: Any) -> jax.Array:
    try:
        return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: {where} must be an array, but is {leaf!r}: {error}") from None


def _flags(name: str, option: str, flags: Any, of: tuple[str, Any], count: int) -> list[bool]:
    """A bool or a prefix pytree of bools, one bool a leaf; of: the tree's name and the tree."""
    tree_name, tree = of
    if isinstance(flags, bool | np.bool_):
        return [bool(flags)] * count
    try:
        leaves = jax.tree.leaves(jax.tree.map(lambda flag, part: jax.tree.map(lambda _: flag, part), flags, tree))
    except ValueError:
        found = difference(option, flags, tree_name, tree, prefix=True)
        raise ValueError(f"{name}: {option} must be a bool or a prefix of {tree_name}: {found}") from None
    for leaf in leaves:
        if not isinstance(leaf, bool | np.bool_):
            raise TypeError(f"{name}: {option} must hold Python bools, not {leaf!r}")
    return [bool(leaf) for leaf in leaves]


def _is_float8(*operands: jax.Array) -> bool:
    """Whether one is a float of 8 bits: it promotes with nothing, and is multiplied as is where a result is named."""
    return any(jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize == 1 for x in operands)


def _describe(x: jax.Array, other: jax.Array) -> str:
    return str(tuple(x.shape)) if x.dtype == other.dtype else f"{x.dtype}{tuple(x.shape)}"


@functools.lru_cache(maxsize=1024)
def result_dtype(lhs: Any, rhs: Any, precision: Any, preferred_element_type: Any, default_float: Any) -> Any:
    """What jnp.matmul makes of these options; it also raises its errors for bad ones."""
    del default_float  # whether x64 is on decides what preferred_element_type means
    ones = [jax.ShapeDtypeStruct((1, 1), dtype) for dtype in (lhs, rhs)]

    def matmul(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.matmul(a, b, precision=precision, preferred_element_type=preferred_element_type)

    return jax.eval_shape(matmul, *ones).dtype
