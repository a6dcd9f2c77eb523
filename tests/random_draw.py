"""What a random call is made of: drawn numbers, shapes and options, and what its results should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

import jax_vbgemm as vb
from jax_vbgemm._src.native.backends import default_device
from jax_vbgemm._src.planner.tables.catalogue import catalogue_for, kind_of

DTYPES = ("float32", "bfloat16", "float16", "float64", "complex64", "complex128")
PLANNERS = ("auto", "uniform", "coordinated", "sort_split", "load_balanced", "tall_skinny")
PATTERN = 7.0


class Compared(NamedTuple):
    """A result, what it should be in float64, and the product of absolute values, which scales the tolerance."""

    found: Any
    expected: np.ndarray
    size: np.ndarray


class Call(NamedTuple):
    """A random call: `run` computes it on the device, and `compare` says what its results should be."""

    text: str
    run: Callable[[], Any]
    compare: Callable[[Any], list[Compared]]


class Draw:
    """Random numbers, shapes and options of one call."""

    def __init__(self, seed: int, dtypes: tuple[str, ...]) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = np.dtype(jax.numpy.dtype(self.one_of(dtypes)))
        self.precision = self.one_of(("highest", "high", "default"))
        self.is_complex = self.dtype.kind == "c"

    def one_of(self, values: Any) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def chance(self, one_in: int) -> bool:
        return bool(self.rng.integers(one_in) == 0)

    def extent(self, large: bool = False) -> int:
        edge = self.one_of((8, 16, 32, 64, 128, 256)) + int(self.rng.integers(-1, 2))
        choices = [int(self.rng.integers(1, 25)), int(self.rng.integers(1, 200)), edge]
        if large:
            choices += [int(self.rng.integers(200, 700)), 8 * int(self.rng.integers(25, 100))]
        return 0 if self.chance(40) else self.one_of(choices)

    def shape(self) -> tuple[int, int, int]:
        large = self.chance(4)
        return self.extent(large), self.extent(large), self.extent(large)

    def array(self, *shape: int, dtype: Any = None) -> np.ndarray:
        dtype = self.dtype if dtype is None else np.dtype(dtype)
        x = self.rng.uniform(-1, 1, shape)
        return (x + 1j * self.rng.uniform(-1, 1, shape) if dtype.kind == "c" else x).astype(dtype)

    def planner(self) -> Any:
        """A planner, or one tile for all problems: also the tiles that no planner would choose."""
        if not self.chance(3):
            return self.one_of(PLANNERS)
        device = default_device()
        kind = kind_of(self.dtype.name, self.precision if self.dtype == np.float32 else "highest", device)
        return vb.Uniform(tile=self.one_of(list(catalogue_for(kind, device))).key)

    def rounding(self) -> float:
        """The relative error of a product's factors and sums in this call's arithmetic."""
        if self.dtype.name in ("float32", "complex64"):
            if jax.default_backend() == "cpu" or self.precision == "highest" or self.is_complex:
                return 2.0**-18  # one accumulator may add a thousand products, one after the other
            return 2.0**-16 if self.precision == "high" else 2.0**-9
        return 2.0**-47 if self.dtype.itemsize >= 8 else 2.0**-16


def wide(x: Any) -> np.ndarray:
    x = np.asarray(x)
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def activate(name: str | None, x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        if name == "relu":
            return np.maximum(x, 0)
        if name == "gelu":
            return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        if name == "silu":
            return x / (1 + np.exp(-x))
        if name == "sigmoid":
            return 1 / (1 + np.exp(-x))
        return np.tanh(x) if name == "tanh" else x
