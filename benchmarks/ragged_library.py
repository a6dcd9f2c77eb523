"""The GPU kernels of ragged products on torch's arrays, without JAX, for ragged_check.py and ragged_time.py.

Their C library is built from ragged_library.cu, whose first lines say how.
"""

from __future__ import annotations

import ctypes

import torch

KINDS = [torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bfloat16, torch.float16]
ACTIVATIONS = ["none", "relu", "gelu", "silu", "tanh", "sigmoid"]
SHAPES = ["automatic", "wide_pair", "wide", "narrow"]
"""Tiles of the pipelined kernel, and the same where blocks take tiles as they come, as calls from JAX do."""
SHAPES += [f"{shape}_taken" for shape in SHAPES]


class Library:
    def __init__(self, path):
        self.call = ctypes.CDLL(path).ragged_trial
        self.call.argtypes = [ctypes.c_int] * 7 + [ctypes.c_int64] * 5 + [ctypes.c_void_p] * 8
        self.call.restype = ctypes.c_int

    def __call__(
        self, lhs, rhs, sizes, out, *, contraction=False, transpose_rhs=False, offset=None, bias=None, row_scale=None,
        activation="none", shape="automatic_taken",
    ):  # fmt: skip
        m, k = lhs.shape
        n = out.shape[-1]
        g = out.shape[0] if contraction else rhs.shape[0]
        pointers = [None if x is None else x.data_ptr() for x in (lhs, rhs, sizes, offset, bias, row_scale, out)]
        wide = out.dtype != lhs.dtype
        error = self.call(
            KINDS.index(lhs.dtype), wide, contraction, transpose_rhs, sizes.dtype == torch.int64,
            ACTIVATIONS.index(activation), SHAPES.index(shape), m, k, n, g, sizes.shape[0], *pointers,
            torch.cuda.current_stream().cuda_stream,
        )  # fmt: skip
        if error:
            raise RuntimeError(f"ragged_trial: CUDA error {error}")
