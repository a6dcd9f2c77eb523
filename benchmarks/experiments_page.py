"""docs/experiments.md: what the papers report beside what our kernels do, a section an experiment."""

from pathlib import Path

import experiments_batches
import experiments_figures
import experiments_plots
import experiments_skinny
import experiments_tsm2
from batching_forest import train
from candidates import ratios
from experiments_batches import Later
from experiments_data import Data, claims, times
from figures import batch_of
from jax_vbgemm._src.planner import catalogue_for, device_spec
from jax_vbgemm._src.planner.model.occupancy import tile_occupancy
from jax_vbgemm._src.planner.papers.coordinated import BY_128, BY_256
from jax_vbgemm._src.planner.papers.load_balanced import CLASSES, TENSOR_CLASSES, table_3
from jax_vbgemm._src.planner.tables.catalogue import TileKey
from report import table
from workloads import Row, read_csv

COMMAND = "python benchmarks/experiments.py page"
_PREDICTED = (
    "**Our times on this page are the cost model's predictions**: these plans have not been timed since the "
    "readings below became options. The peers' times are measured. `benchmarks/experiments.sh` measures every "
    "plan; this page then shows the measured times."
)
# Shown while the measured plans lack the reading "load_balanced, smallest tiles": they are older than this option.
_FORMER_DEFAULT = (
    'Figures of `load_balanced` were measured with `unreached="smallest"`, its former default. Where the threshold is '
    "out of reach, today's default does not make all tiles the smallest: [R6](design/papers.md#r6) says how many of "
    "the plans below differ."
)
CONVOLUTIONS = Path(__file__).parent / "results" / "h100_conv.csv"  # experiments.sh writes it
PAPERS = ("coordinated", "sort_split", "load_balanced")
OVER_MAGMA = "3.63x (A800; 3.36x in the text), 4.37x (MI210)"


def _tiling_and_batching(data: Data, later: Later) -> list[str]:
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


def _branches(data: Data, later: Later) -> list[str]:
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
    each = ", ".join(f"{name} {row['flax_conv'] / row['vbgemm']:.2f}x" for name, row in later.modules.items())
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
        "The papers' figures are not of the same thing. Li's are for the whole inference pass with all 57 convolutions "
        "on a V100: 3.18 ms by cuDNN, 2.41 ms with streams, 2.01 ms with the framework. Zhang's Fig. 11 is for each "
        "module: on average 1.87x over cuDNN (A800) and 2.88x over MIOpen (MI210), and 2.66x and 3.68x for modules 8 "
        f"and 9. Ours over cuDNN in JAX, forward in float32: all branches of all modules together {times(over)}, each "
        f"module's 1x1 convolutions by themselves on an H200: {each or experiments_tsm2.NOT_YET}.",
    ]


def _planners(data: Data, later: Later) -> list[str]:
    grids = data.table("compare", "readings")
    names = ("auto", "uniform", *PAPERS)
    return [
        "## The planners against each other and the libraries (Wang 2022; Zhang 2025, Fig. 4 and 5)",
        "",
        *claims(
            (
                ("load_balanced over coordinated", "1.94x (A800)", ratios(grids, "load_balanced", "coordinated")),
                ("load_balanced over sort_split", "1.88x (MI210)", ratios(grids, "load_balanced", "sort_split")),
                (
                    "load_balanced over MAGMA",
                    OVER_MAGMA,
                    data.over_peer(grids, "load_balanced", "MAGMA vbatched"),
                ),
                (
                    "load_balanced over CUTLASS",
                    "4.64x (A800)",
                    data.over_peer(grids, "load_balanced", "CUTLASS grouped"),
                ),
                (
                    "load_balanced over a cuBLAS loop",
                    "7.18x (A800)",
                    data.over_peer(grids, "load_balanced", "cuBLAS loop"),
                ),
                (
                    "sort_split over MAGMA",
                    "missing from our copy of the paper",
                    data.over_peer(grids, "sort_split", "MAGMA vbatched"),
                ),
                ("auto over MAGMA", "", data.over_peer(grids, "auto", "MAGMA vbatched")),
            )
        ),
        "",
        "The authors' released kernels, measured as peers, take sizes that are multiples of 16, so that only `pow2` can"
        " be compared. As released, Zhang's computed wrong results for every workload, and were mended; of its two "
        "thresholds the faster one counts:",
        "",
        *claims(
            (
                (
                    "Li's released kernels over MAGMA",
                    "1.40x (V100)",
                    data.peers_over_peer("Li 2019", "MAGMA vbatched", grids),
                ),
                (
                    "Zhang's, mended, over MAGMA",
                    OVER_MAGMA,
                    data.peers_over_peer("Zhang 2025, mended", "MAGMA vbatched", grids),
                ),
                ("coordinated over Li's released kernels", "", data.over_peer(grids, "coordinated", "Li 2019")),
                (
                    "load_balanced over Zhang's, mended",
                    "",
                    data.over_peer(grids, "load_balanced", "Zhang 2025, mended"),
                ),
                ("auto over Li's released kernels", "", data.over_peer(grids, "auto", "Li 2019")),
                ("auto over Zhang's, mended", "", data.over_peer(grids, "auto", "Zhang 2025, mended")),
            )
        ),
        "",
        "All planners use our kernels, so these ratios compare plans alone. The papers' ratios compare planners "
        "and kernels together. The next table shows the speedup of the row's planner over the column's:",
        "",
        *table(
            ("", *names),
            (
                (row, *("" if row == column else times(ratios(grids, row, column), False) for column in names))
                for row in names
            ),
        ),
        "",
        "![Over MAGMA by batch size](experiments/planners.svg)",
        "",
        *experiments_batches.every_batch(later),
        "",
        "### On tensor cores",
        "",
        "At JAX's default precision float32 is multiplied as TF32, and the papers' planners use tensor-core tiles"
        " of the papers' shapes (`tensor=None`; there are none of 16 x 16 and 128 x 64). Speedup over the same "
        "planner with ordinary tiles, TF32, batch 64:",
        "",
        *table(
            PAPERS,
            [
                [
                    times(ratios(data.table("tensor", precision="tf32"), name, f"{name}, ordinary tiles"))
                    for name in PAPERS
                ]
            ],
        ),
    ]


def _readings(data: Data) -> list[str]:
    grids = data.table("compare", "readings")
    small = [name for name in grids if (batch_of(name) or 0) <= 16]
    large = [name for name in grids if (batch_of(name) or 0) >= 32]
    plan_of = {(c.workload, c.planner): c.plan for c in data.every if c.part == "compare"}
    names = {name for name, _ in plan_of}
    differ = sum(plan_of[name, "load_balanced"] != plan_of[name, "load_balanced, old TLP"] for name in names)

    def new(some: list[str]) -> list[float]:
        return ratios(grids, "load_balanced", "load_balanced, old TLP", some)

    known = (
        ("sort_split", "sort_split, tile first", "tiles sorted by area, then K (the authors' later code)"),
        ("sort_split", "sort_split, one pass", "split-down walks once (the authors' later code)"),
        ("sort_split", "sort_split, tile first, one pass", "both of these"),
        ("load_balanced", "load_balanced, by problem", "phi bounds each problem's waves (Eq. 4 as printed)"),
        ("load_balanced", "load_balanced, by device", "phi bounds the batch's waves (Algorithm 1)"),
        ("load_balanced", "load_balanced, whole passes", "passes as in Algorithm 1: all problems by a class in each"),
        ("load_balanced", "load_balanced, smallest tiles", "where the threshold is out of reach, the smallest tiles"),
    )
    planners = {candidate.planner for candidate in data.every}
    readings = [reading for reading in known if reading[1] in planners]
    return [
        "## The new TLP (Zhang 2025, Fig. 8 and 9), and what else the texts leave open",
        "",
        "Eq. 4-9 of the paper count only the warps that can be active. At the device table's threshold "
        f"({data.device.load_balanced_threshold} threads, "
        f"above the number that one class can have active) these equations changed {differ} of the {len(names)} "
        "measured plans.",
        "",
        *claims(
            (
                ("new TLP over old", "1.085x (A800), 1.077x (MI210)", new(list(grids))),
                ("batch <= 16 (ours: 16)", "1.04x", new(small)),
                ("batch >= 32 (ours: 64 and 256)", "1.11x (A800), 1.10x (MI210)", new(large)),
            )
        ),
        "",
        "Where a paper's text allows several readings, each is an option, and the planner's docstring says "
        "which one is "
        "the default and why. Not measured: `Coordinated(switch=)`, and `LoadBalanced(undivided=, "
        "divides_k=)`. Speedup "
        "of other readings over the default:",
        "",
        *table(
            ("planner", "other reading", "times as fast as the default"),
            ((planner, what, times(ratios(grids, other, planner))) for planner, other, what in readings),
        ),
    ]


def _occupancy(later: Later) -> list[str]:
    devices = ("a800", "mi210", "h100")
    rows = []
    for kind, order in (("float32", CLASSES), ("bfloat16", TENSOR_CLASSES)):
        for key in order:
            cells = []
            for spec in map(device_spec, devices):
                tiles = {tile.key: tile for tile in catalogue_for(kind, spec)}
                cells.append(f"{tile_occupancy(tiles[key], spec).fraction:.0%}" if key in tiles else "-")
            rows.append((f"{key[0]}/{key[1]}, {kind}", *cells))
    w_dl = ", ".join(f"{moved:g}" for _, moved in table_3(catalogue_for("float32", device_spec("h100"))).values())
    return [
        "## Kernel occupancy (Zhang 2025, Fig. 6) and work per thread (Table 3)",
        "",
        "The fraction of a multiprocessor's warps that can be active by Eq. 5-9, from the compiler's figures for "
        "registers and shared memory:",
        "",
        *table(("tile", *devices), rows),
        "",
        "17 kernels of 2026-11-22 were measured on an H100 with Nsight Compute on `pow2_mn512_k512_b256` "
        "([C8](design/cost-model.md#c8); the profiler's files were not kept). The equations give the profiler's "
        "theoretical occupancy in all 17 (12.5 to 50%), and 92-100% of it was achieved. In Fig. 6 the proposed method "
        "has the highest occupancy. Ours have few threads with many registers each.",
        "",
        f"W_DL of Table 3 for our tiles, with the paper's Tk = 16: {w_dl} (the paper: 6, 10, 16, 14, 24). "
        "`Plan.work_per_thread` has W_DL for the K steps of our kernels.",
        "",
        *_one_kernel(later),
    ]


def _one_kernel(later: Later) -> list[str]:
    device = device_spec("h100")
    tiles = {tile.key: tile for tile in catalogue_for("float32", device)}
    rows = []
    for title, keys in (("Li, 256 threads", BY_256), ("Li, 128 threads", BY_128), ("Zhang", CLASSES)):
        occupancy = {key: tile_occupancy(tiles[key], device) for key in keys}
        by_kernel: dict[str, list[TileKey]] = {}
        for key in keys:
            by_kernel.setdefault(tiles[key].kernel, []).append(key)
        own = "; ".join(
            f"{', '.join(name for name, _ in held)}: {occupancy[held[0]].fraction:.0%}" for held in by_kernel.values()
        )
        least = min(each.fraction for each in occupancy.values())
        rows.append((title, str(len(by_kernel)), own, f"{least:.0%}"))
    return [
        "### One kernel for a batch (Li 2019, section 6; Zhang 2025, section 4)",
        "",
        "The papers launch one kernel for a batch: Li's holds all strategies, and Zhang's has 256 threads of which the "
        "surplus ones leave. Our plans launch a kernel for each class of threads and registers, and a block whose "
        "tiles are of several kernels becomes a block of each. That is not an option of the planners: a kernel has the "
        "registers and the shared memory of its largest tile, so that in one kernel all tiles have the occupancy of "
        "that tile at most. On an H100, in float32:",
        "",
        *table(("", "kernels", "occupancy in these kernels", "in one kernel, at most"), rows),
        "",
        f"A further kernel of a call takes {1e6 * device.launch_seconds:.1f} us on an H100, as kernels of one call "
        "overlap ([L2](design/latency.md#l2)).",
        "",
        *experiments_batches.one_kernel(later),
    ]


def _planning(data: Data, later: Later) -> list[str]:
    batches = [c for c in data.every if c.part == "batches"]
    sizes = sorted({batch_of(c.workload) or 0 for c in batches})
    took = data.table("batches")

    def cell(planner: str, size: int) -> str:
        (candidate,) = (c for c in batches if c.planner == planner and batch_of(c.workload) == size)
        share = candidate.planning_us / took[candidate.workload][planner]
        return f"{candidate.planning_us / 1e3:.2f} ms, {share:.0f}x"

    return [
        "## Planning time (Zhang 2025, Fig. 7)",
        "",
        "The paper plans in every call, which takes 6.06% and 6.37% of the run time at batch 8, and less than 1% "
        "at 1024. We plan once per compiled program, in Python, which is not the same thing: the table shows "
        "the time of planning (one core, the best of 3), and the same time as a "
        "multiple of one call's kernel time. After as many hundred calls as this multiple says, planning is 1% of"
        " the total:",
        "",
        *table(
            ("[16,256]", *(f"batch {size}" for size in sizes)),
            ((p, *(cell(p, s) for s in sizes)) for p in ("auto", *PAPERS)),
        ),
        "",
        "## Latency by batch size (Zhang 2025, Fig. 10)",
        "",
        "The paper reports a latency of 3.02x, 2.59x, 2.45x and 1.89x less than cuBLAS, MAGMA, CUTLASS and Li on "
        "an A800. Our latencies, for M, N and K in [16, 256], in microseconds a call:",
        "",
        *table(
            ("", *(f"batch {size}" for size in sizes)),
            ((p, *(f"{took[f'range_b{s}'][p]:.1f}" for s in sizes)) for p in ("auto", "uniform", *PAPERS)),
        ),
        "",
        *experiments_batches.latencies(later),
        "",
        "![Latency by batch size](experiments/latency.svg)",
    ]


def _threads(data: Data) -> list[str]:
    (row,) = data.table("threads").values()
    gflop = 2e-9 * 64 * 512**3
    shapes = list(dict.fromkeys(name.rpartition("/")[0] for name in row))

    def cell(shape: str, threads: int) -> str:
        us = row.get(f"{shape}/{threads}")
        return "-" if us is None else f"{1e3 * gflop / us:.1f}"

    both = [shape for shape in shapes if f"{shape}/128" in row and f"{shape}/256" in row]
    fewer = sum(row[f"{shape}/128"] < row[f"{shape}/256"] for shape in both)
    return [
        "## Threads and tiles (Zhang 2025, Fig. 3)",
        "",
        "TFLOP/s of 64 products of 512 x 512 x 512, for each tile with 128 and with 256 threads (the paper has "
        "64, 128, 256 and 512; kernels of 64 and 512 threads are not built). The paper finds that rates rise and "
        f"then fall as a thread's part of a tile grows, and that more threads suit larger tiles; here {fewer} of "
        f"{len(both)} tiles that have both are faster with 128:",
        "",
        *table(("tile", "128 threads", "256 threads"), ((s, cell(s, 128), cell(s, 256)) for s in shapes)),
        "",
        "![Threads and tiles](experiments/threads.svg)",
    ]


def page(data: Data, later: Later) -> str:
    state = _PREDICTED
    if data.measured:
        state = (
            f"Times are measured on an H100 ({data.device.units} multiprocessors), by CUDA-graph replay with operands "
        )
        state += "from memory; `benchmarks/results/sources.csv` says where and when."
    if data.measured and all(candidate.planner != "load_balanced, smallest tiles" for candidate in data.every):
        state += f"\n\n{_FORMER_DEFAULT}"
    sections = (
        _tiling_and_batching(data, later), _branches(data, later), _planners(data, later), _readings(data),
        _occupancy(later), _planning(data, later), _threads(data), experiments_skinny.section(data),
        experiments_batches.columns(later), experiments_tsm2.section(later.tsm2), experiments_figures.section(),
    )  # fmt: skip
    lines = [
        "# The papers' experiments",
        "",
        f"<!-- Written by `{COMMAND}`: change that script, not this page. -->",
        "",
        "This page is for readers of the four papers behind the [planners](guides/planners.md), and for those who "
        "choose among the planners. It repeats the papers' experiments with our kernels on an H100, and shows the "
        "papers' results beside ours. The papers are Li et al. 2019 (`coordinated`), Wang et al. 2022 (`sort_split`), "
        "Zhang et al. 2025 (`load_balanced`) and Rivera et al. (`tall_skinny`). `uniform` is one tile shape for all "
        "problems, and `auto` is this package's default. Products are float32 without tensor cores unless said "
        "otherwise. Speed-ups are geometric means, with the number of workloads in brackets.",
        "",
        state,
        "",
        f"`python benchmarks/experiments.py cases` makes the plans, and `{COMMAND}` makes this page.",
    ]
    for section in sections:
        lines += ["", *section]
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def write(data: Data, later: Later, output: Path) -> list[Path]:
    """The page, and the plots in a folder of its name."""
    output.write_text(page(data, later))
    return [output, *experiments_plots.draw(data, output.with_suffix(""))]
