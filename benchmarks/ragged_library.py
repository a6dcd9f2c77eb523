"""The GPU kernels of ragged products on torch's arrays, for ragged_check.py and ragged_time.py.

Their C library is built from ragged_library.cu, whose first lines say how.
"""

from __future__ import annotations

import ctypes

import torch

from jax_vbgemm._src.planner import device_spec
from jax_vbgemm._src.ragged.tile_shape import SHAPES, takes_from_counter, tile_shape

KINDS = [torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bfloat16, torch.float16]
ACTIVATIONS = ["none", "relu", "gelu", "silu", "tanh", "sigmoid"]
NAMED = SHAPES[1:]
CHOICES = ["automatic", *NAMED, *(f"{shape}_taken" for shape in NAMED)]
"""Tiles of the pipelined kernel; as calls from JAX have them on an H100, or by name; `taken`: where blocks take tiles
from a counter."""
RULES = device_spec("h100").ragged_rules


def number_of(choice, *, contraction, rows, groups, k, columns):
    """The argument `shape` of ragged_trial."""
    if choice == "automatic":
        shape = tile_shape(RULES, contraction=contraction, rows=rows // groups, k=k, columns=columns)
        taken = takes_from_counter(RULES, rows=rows, k=k, columns=columns)
    else:
        shape, taken = choice.removesuffix("_taken"), choice.endswith("_taken")
    return SHAPES.index(shape) + len(SHAPES) * taken


class Library:
    def __init__(self, path):
        self.call = ctypes.CDLL(path).ragged_trial
        self.call.argtypes = [ctypes.c_int] * 7 + [ctypes.c_int64] * 5 + [ctypes.c_void_p] * 8
        self.call.restype = ctypes.c_int

    def __call__(
        self, lhs, rhs, sizes, out, *, contraction=False, transpose_rhs=False, offset=None, bias=None, row_scale=None,
        activation="none", shape="automatic",
    ):  # fmt: skip
        m, k = lhs.shape
        n = out.shape[-1]
        g = out.shape[0] if contraction else rhs.shape[0]
        pointers = [None if x is None else x.data_ptr() for x in (lhs, rhs, sizes, offset, bias, row_scale, out)]
        wide = out.dtype != lhs.dtype
        number = number_of(shape, contraction=contraction, rows=m, groups=sizes.shape[0], k=k, columns=n)
        error = self.call(
            KINDS.index(lhs.dtype), wide, contraction, transpose_rhs, sizes.dtype == torch.int64,
            ACTIVATIONS.index(activation), number, m, k, n, g, sizes.shape[0], *pointers,
            torch.cuda.current_stream().cuda_stream,
        )  # fmt: skip
        if error:
            raise RuntimeError(f"ragged_trial: CUDA error {error}")
