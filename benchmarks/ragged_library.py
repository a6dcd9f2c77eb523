"""The GPU kernels of ragged products on torch's arrays, for ragged_check.py and ragged_time.py.

Their C library is built from ragged_library.cu, whose first lines say how.
"""

from __future__ import annotations

import ctypes

import torch

from jax_vbgemm._src.epilogue import activation_number
from jax_vbgemm._src.matmul.descriptors import KINDS
from jax_vbgemm._src.planner import device_spec
from jax_vbgemm._src.planner.tables.catalogue import PIPELINED as PIPELINED_TILES
from jax_vbgemm._src.planner.tables.catalogue import catalogue_for
from jax_vbgemm._src.ragged.plan import SHAPES, Product, RaggedPlan, catalogue_tile, is_short, plan, why_not_pipelined

PIPELINED = [*SHAPES[1:], *(f"{shape}_taken" for shape in SHAPES[1:])]
CHOICES = ["automatic", "tiles", *PIPELINED]
"""How a call is computed: as calls from JAX are on an H100, by the catalogue's tile that the model chooses, by the
tile of that name ("tile NAME/THREADS"), or by a shape of the pipelined kernel; `taken`: where blocks take tiles from a
counter."""
H100 = device_spec("h100")


def kind_of(dtype):
    return str(dtype).removeprefix("torch.")


def product_of(m, k, rhs, groups, sizes, contraction, transpose_rhs, gated):
    columns, total_groups = rhs.shape[-2 if transpose_rhs else -1], sizes.shape[0]
    rows = m // total_groups
    return Product(contraction, transpose_rhs, gated, m, k, columns, groups, total_groups, rows)


def tiles_of(kind, product):
    """Choices of all tiles that can compute a product."""
    tiles = [tile for tile in catalogue_for(kind, H100) if is_short(product, tile.index)]
    return [f"tile {tile.name}/{tile.threads}" for tile in tiles if tile.kernel not in PIPELINED_TILES]


def plan_of(choice, kind, product):
    if choice == "automatic":
        return plan(kind, H100, product, certain=True)
    if choice == "tiles" or (choice in PIPELINED and why_not_pipelined(kind, H100, product)):
        shape, counted, tile = "none", False, catalogue_tile(kind, H100, product)
    elif choice in PIPELINED:
        shape, counted, tile = choice.removesuffix("_taken"), choice.endswith("_taken"), -1
    else:
        name, threads = choice.removeprefix("tile ").split("/")
        shape, counted, tile = "none", False, catalogue_for(kind, H100).find(name, int(threads)).index
    return RaggedPlan.of(shape, counted, tile, product)


class Library:
    """The library at a path; a call computes one ragged product into `out`.

    Workspaces are kept: each is used again by the next call with the same sizes and plan, as in a replayed program.
    """

    def __init__(self, path):
        self.call = ctypes.CDLL(path).ragged_trial
        self.call.argtypes = [ctypes.c_int] * 7 + [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 6 + [ctypes.c_void_p] * 13
        self.call.restype = ctypes.c_int
        self.workspaces = {}

    def __call__(
        self, lhs, rhs, sizes, out, *, contraction=False, transpose_rhs=False, gated=False, offset=None, bias=None,
        row_scale=None, gather=None, lhs_scale=None, rhs_scale=None, activation=None, accumulates=False,
        shape="automatic", kind=None,
    ):  # fmt: skip
        lhs_rows, k = lhs.shape
        m = lhs_rows if gather is None else gather.shape[0]
        n = out.shape[-1]
        g = out.shape[0] if contraction else rhs.shape[0]
        kind = kind or kind_of(lhs.dtype)
        product = product_of(m, k, rhs, g, sizes, contraction, transpose_rhs, gated)
        chosen = plan_of(shape, kind, product)
        workspace = self.workspaces.get((product, chosen))
        if workspace is None:
            workspace = torch.empty(max(chosen.workspace, 1), dtype=torch.uint8, device="cuda")
            self.workspaces[product, chosen] = workspace
        words = (ctypes.c_int * 3)(*chosen.words)
        pointers = [
            None if x is None else x.data_ptr()
            for x in (
                lhs, rhs, sizes, offset, bias, row_scale, gather, lhs_scale, rhs_scale,
                out if accumulates else None, out, workspace,
            )
        ]  # fmt: skip
        wide = out.dtype == torch.float32 and lhs.dtype != torch.float32
        # The last dimensions of scales are blocks; those of rhs, which is (g, n, k), are of columns and of K.
        of_rhs = (1, 1) if rhs_scale is None else rhs_scale.shape[-2:]
        blocks = (ctypes.c_int * 3)(1 if lhs_scale is None else lhs_scale.shape[-1], of_rhs[1], of_rhs[0])
        error = self.call(
            KINDS.index(kind), wide, contraction, transpose_rhs, gated,
            sizes.dtype == torch.int64, activation_number(activation), words, blocks, m, k, n, g, sizes.shape[0],
            lhs_rows, *pointers, torch.cuda.current_stream().cuda_stream,
        )  # fmt: skip
        if error:
            raise RuntimeError(f"ragged_trial: CUDA error {error}")
