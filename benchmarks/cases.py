"""Writes plans into a case file that gpu_driver times; its layout is described at the top of gpu_driver.cu."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jax_vbgemm import Plan, Uniform, _core
from jax_vbgemm._src.matmul.addresses import address
from jax_vbgemm._src.matmul.descriptors import KINDS, pack, problem_table
from jax_vbgemm._src.matmul.primitive import Term, sizes_of
from jax_vbgemm._src.planner import catalogue_for, device_spec, kind_of, plan_problems, resolve_planner
from jax_vbgemm._src.problem import Problem, problems_of
from workloads import PRECISIONS, problems_named

Size = Problem | Sequence[int]  # M, N, K

# The header of a case file: a driver with another catalogue refuses the file.
HEADING = b"VBGCASE3" + np.int64(_core.catalogue_hash()).tobytes()


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def body_of(sizes: Sequence[Size], plan: Plan) -> bytes:
    """A case without its names: equal plans have equal bytes, whichever planner made them."""
    problems = problems_of(sizes)
    count = len(problems)
    terms = [Term(0, 1, 0, p.transpose_a, p.transpose_b) for p in problems]
    shapes = [
        ((p.k, p.m) if p.transpose_a else (p.m, p.k), (p.n, p.k) if p.transpose_b else (p.k, p.n)) for p in problems
    ]
    term_sizes = [sizes_of(*pair, term) for pair, term in zip(shapes, terms, strict=True)]
    addresses = [address(*pair, *rest) for pair, *rest in zip(shapes, terms, term_sizes, strict=True)]
    table = problem_table(addresses, [(2 * i, 2 * i + 1, 2 * count + i) for i in range(count)])
    packed = pack(plan, table)
    has_block_first = packed.num_blocks != packed.num_tiles
    header = np.array(
        [KINDS.index(plan.kind), count, packed.num_runs, packed.num_tiles, packed.num_blocks,
         len(packed.launches) // 3, has_block_first, packed.num_splits], np.int32
    )  # fmt: skip
    return padded(header.tobytes() + packed.launches.tobytes()) + padded(packed.words.tobytes())


def named(peer: str, name: str, body: bytes) -> bytes:
    """A complete case, with the names of peer and workload."""
    return b"".join(text.encode()[:63].ljust(64, b"\0") for text in (peer, name)) + body


def case(peer: str, name: str, sizes: Sequence[Size], kind: str, planner: object, device: str) -> bytes:
    plan = plan_problems(list(problems_of(sizes)), kind, device_spec(device), planner)
    return named(peer, name, body_of(sizes, plan))


def tiles_of(kind: str, device: str, chosen: Sequence[str]) -> list[tuple[str, int]]:
    """(name, threads) for each "NAME,THREADS"; for "all", for every tile of the arithmetic."""
    if list(chosen) == ["all"]:
        return [tile.key for tile in catalogue_for(kind, device_spec(device))]
    return [(name, int(threads)) for name, _, threads in (tile.rpartition(",") for tile in chosen)]


def write(
    output: Path,
    names: Sequence[str],
    planners: Sequence[str],
    tiles: Sequence[str],
    precisions: Sequence[str],
    device: str,
) -> int:
    """Writes each workload with each planner and each tile in each precision; returns the number of cases."""
    count = 0
    with output.open("wb") as file:
        file.write(HEADING)
        for precision in precisions:
            kind = kind_of(*PRECISIONS[precision], device_spec(device))
            plans = {f"vbgemm_{name}": resolve_planner(name) for name in planners}
            plans |= {f"vbgemm_{name}_{n}": Uniform(tile=(name, n)) for name, n in tiles_of(kind, device, tiles)}
            for name in names:
                for peer, planner in plans.items():
                    file.write(case(peer, name, problems_named(name), kind, planner, device))
                    count += 1
    return count
