"""Sections of docs/experiments.md on Li et al. 2019: tiling and batching, and the branches of networks."""

from pathlib import Path

import experiments_batches
from batching_forest import train
from candidates import ratios
from experiments_batches import PAPERS, Later
from experiments_data import Data, claims, times
from experiments_tsm2 import NOT_YET
from figures import batch_of
from report import table
from workloads import Row, read_csv

CONVOLUTIONS = Path(__file__).parent / "results" / "h100_conv.csv"  # experiments.sh writes it


def tiling_and_batching(data: Data, later: Later) -> list[str]:
    grids = data.table("compare", "readings")
    steps = ("coordinated, tiling alone", "coordinated, threshold", "coordinated, binary", "coordinated")
    batches = sorted({batch_of(name) or 0 for name in grids})

    def at(planner: str, batch: int) -> str:
        return times(
            data.over_peer({n: row for n, row in grids.items() if batch_of(n) == batch}, planner, "MAGMA vbatched"),
            False,
        )

    return [
        "## Tiling alone, tiling and batching (Li 2019, Fig. 8 and 9)",
        "",
        "Speedup over MAGMA's vbatched kernel. The paper's products are synthetic, of equal sizes, on a V100. "
        "Ours are Zhang's grids of products of unequal sizes (`any`: uniform integers, `pow2`: powers of two).",
        "",
        *claims(
            (
                ("tiling engine alone", "1.20x", data.over_peer(grids, "coordinated, tiling alone", "MAGMA vbatched")),
                ("tiling and batching", "1.40x", data.over_peer(grids, "coordinated", "MAGMA vbatched")),
            )
        ),
        "",
        "The two batching heuristics, and the choice between them by the cost model (`coordinated`):",
        "",
        *table(
            ("over MAGMA", *(f"batch {batch}" for batch in batches)), ((s, *(at(s, b) for b in batches)) for s in steps)
        ),
        "",
        "The paper batches tiles so that a block has loads in flight while it multiplies.",
        "",
        "All twelve strategies of Li's Table 2 are in the catalogues of today's GPUs. On the papers' Kepler, Maxwell "
        "and Pascal GPUs, which are described for plans only, the tall, wide and huge tiles with 128 threads do not "
        "fit 48 KB of shared memory, and the large one replaces them (a note of the plan says so).",
        "",
        *experiments_batches.li_grid(later),
        "",
        *_selector(data),
    ]


def _selector(data: Data) -> list[str]:
    lines = [
        "### Which batching? Random forest and cost model (section 5)",
        "",
        "The paper trains a random forest on more than 400 samples, with mean M, N, K and batch size as features."
        " Ours is trained by scikit-learn on 420 random batches (`benchmarks/batching_forest.py`), of which only "
        "samples count whose batchings differ by 1% or more.",
        "",
    ]
    if not data.measured:
        return [*lines, "Not measured yet; until then the cost model chooses."]
    _, found = train(data.every, data.times)
    rows = [
        ("forest, on samples held out", f"{found.forest_right:.1%}", f"{found.forest_loss:.3f}x"),
        ("cost model", f"{found.model_right:.1%}", f"{found.model_loss:.3f}x"),
        *((f"always {name}", "-", f"{loss:.3f}x") for name, loss in found.always.items()),
    ]
    head = (f"of {found.samples} samples", "right", "time over the better batching's")
    return [*lines, *table(head, rows)]


def networks(data: Data, later: Later) -> list[str]:
    branches = data.table("branches")

    def over_magma(*names: str) -> list[float]:
        some = {name: row for name, row in branches.items() if name in names}
        return data.over_peer(some, "coordinated", "MAGMA vbatched")

    families = ("inception", "squeezenet", "densenet")
    planners = ("auto", *PAPERS)
    rows = []
    for family in families:
        mine = {name: row for name, row in branches.items() if name.startswith(family)}
        rows.append((family, str(len(mine)), *(times(ratios(mine, planner, "uniform"), False) for planner in planners)))
    return [
        "## Branches of networks (Li 2019, Fig. 10)",
        "",
        *claims(
            (
                ("`inception_1` over MAGMA", "inception3a: up to 1.40x", over_magma("inception_1")),
                ("`inception_3` over MAGMA", "inception4a: up to 1.40x", over_magma("inception_3")),
                (
                    "the seven other modules over MAGMA",
                    "the other layers: about 1.25x",
                    over_magma(*(n for n in branches if n not in ("inception_1", "inception_3"))),
                ),
                ("all nine modules over MAGMA, by `auto`", "", data.over_peer(branches, "auto", "MAGMA vbatched")),
            )
        ),
        "",
        "`inception_1` to `inception_9` are Zhang's Table 6, whose products all have K = 192. `inception_1` has the "
        "sizes of GoogLeNet's layer 3a. `inception_3` has those of 4a but for K, which is 480 in GoogLeNet. The "
        "others follow later layers, or parts of them.",
        "",
        "The next table also has SqueezeNet's fire modules (two "
        "branches) and DenseNet's bottlenecks (a product for each map that a layer concatenates). It shows the "
        "speedup over one tile for all products, where this tile is the best by the cost model:",
        "",
        *table(("", "workloads", *planners), rows),
        "",
        *_convolutions(later),
    ]


def _convolutions(later: Later) -> list[str]:
    """GoogLeNet's branches in JAX, where they were measured."""
    if not CONVOLUTIONS.exists():
        return ["cuDNN's convolutions in JAX (`lax.conv`) have not been timed in comparison yet."]
    rows: dict[tuple[str, str], dict[str, float]] = {}
    for row in read_csv(Row, CONVOLUTIONS):
        rows.setdefault((row.workload, row.precision), {})[row.peer] = row.graph_us
    peers = ("vbgemm", "flax_linear", "flax_conv")
    over = [
        row["flax_conv"] / row["vbgemm"]
        for (name, precision), row in rows.items()
        if name.endswith("_forward") and precision == "fp32" and {"flax_conv", "vbgemm"} <= row.keys()
    ]
    each = {name: row["flax_conv"] / row["vbgemm"] for name, row in later.modules.items()}
    dots = {name: row["flax_linear"] / row["vbgemm"] for name, row in later.modules.items()}
    return [
        "GoogLeNet's 36 branches in a jitted loop, microseconds a step: our operation, one product after another "
        "(cuBLAS), and convolutions (`lax.conv`, cuDNN):",
        "",
        *table(
            ("", *peers),
            (
                (f"{name}, {precision}", *(f"{row[peer]:.1f}" if peer in row else "-" for peer in peers))
                for (name, precision), row in rows.items()
            ),
        ),
        "",
        "Li's figures are not of the same thing, but of the whole inference pass with all 57 convolutions on a V100: "
        "3.18 ms by cuDNN, 2.41 ms with streams, 2.01 ms with the framework. Ours of all 36 branches together over "
        f"cuDNN in JAX, forward in float32: {times(over)}.",
        "",
        "Zhang's Fig. 11 has each module by itself, in the paper over MIOpen and cuDNN. The 1x1 convolutions of each "
        "module on an H200, forward in float32, over cuDNN in JAX, and over XLA's own products of the same:",
        "",
        *table(
            ("over", "paper", "all", *(each or ["each module"])),
            [
                (
                    peer,
                    paper,
                    times(list(ours.values())) if ours else NOT_YET,
                    *([f"{speedup:.2f}x" for speedup in ours.values()] or [NOT_YET]),
                )
                for peer, paper, ours in (
                    ("convolutions", "1.87x (A800), 2.88x over MIOpen (MI210)", each),
                    ("products", "", dots),
                )
            ],
        ),
        "",
        "For modules 8 and 9 the paper has 2.66x over cuDNN and 3.68x over MIOpen.",
    ]
