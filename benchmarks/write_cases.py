"""Writes plans into a case file that gpu_driver times: every workload by every planner, in each dtype.

Runs anywhere, no GPU needed; the plans are for `--device`. The layout is described at the top of gpu_driver.cu.
"""

import argparse
from pathlib import Path

import numpy as np
from in_jax import workload

from jax_vbgemm import _core
from jax_vbgemm.descriptors import address, pack, problem_table
from jax_vbgemm.planner import device_spec, plan_problems, resolve_planner
from jax_vbgemm.primitive import Term, sizes_of
from jax_vbgemm.problem import Problem

DTYPES = {"float32": 0, "float64": 1}  # catalogue.h's Kind


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def case(peer: str, name: str, sizes: list[tuple[int, int, int]], dtype: str, planner: object, device: str) -> bytes:
    count = len(sizes)
    term = Term(0, 1, 0)
    shapes = [((m, k), (k, n)) for m, n, k in sizes]
    term_sizes = [sizes_of(lhs, rhs, term) for lhs, rhs in shapes]
    addresses = [address(lhs, rhs, term, size) for (lhs, rhs), size in zip(shapes, term_sizes, strict=True)]
    table = problem_table(term_sizes, addresses, [(2 * i, 2 * i + 1, 2 * count + i) for i in range(count)])
    plan = plan_problems([Problem(*size) for size in sizes], dtype, device_spec(device), planner)
    packed = pack(plan, table)
    has_block_first = packed.num_blocks != packed.num_tiles
    header = np.array(
        [DTYPES[dtype], count, packed.num_runs, packed.num_tiles, packed.num_blocks, len(packed.launches) // 3,
         has_block_first, 0], np.int32
    )  # fmt: skip
    names = b"".join(text.encode()[:63].ljust(64, b"\0") for text in (peer, name))
    return padded(names + header.tobytes() + packed.launches.tobytes()) + padded(packed.words.tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("workloads", nargs="+", help="any_mn128_k128_b64, inception_1, ... or 'grids' for any and pow2")
    parser.add_argument("--batches", type=int, nargs="*", default=[16, 64, 256], help="of 'grids'")
    parser.add_argument("--planners", nargs="*", default=["auto"])
    parser.add_argument("--tiles", nargs="*", default=[], metavar="NAME,THREADS", help="uniform plans; 'all' for each")
    parser.add_argument("--dtypes", nargs="*", default=["float32"], choices=DTYPES)
    parser.add_argument("--device", default="h100")
    options = parser.parse_args()

    names = []
    for name in options.workloads:
        if name == "grids":
            for kind in ("any", "pow2"):
                for mn in (128, 256, 512):
                    for k in (128, 256, 512, 1024):
                        names += [f"{kind}_mn{mn}_k{k}_b{batch}" for batch in options.batches]
        else:
            names.append(name)

    from jax_vbgemm import Uniform

    with options.output.open("wb") as file:
        file.write(b"VBGCASE1")
        for dtype in options.dtypes:
            planners = {f"vbgemm_{name}": resolve_planner(name) for name in options.planners}
            tiles = options.tiles
            if tiles == ["all"]:
                tiles = [
                    f"{name},{threads}"
                    for name, _, _, _, threads, kinds, _, tensor in _core.tiles()
                    if threads > 1 and dtype in kinds and not tensor
                ]
            for tile in tiles:
                name, threads = tile.split(",")
                planners[f"vbgemm_{name}_{threads}"] = Uniform(tile=(name, int(threads)))
            for name in names:
                for peer, planner in planners.items():
                    file.write(case(peer, name, workload(name), dtype, planner, options.device))
    print(f"{options.output}: {len(names)} workloads, {options.output.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
