"""Sections of docs/experiments.md on Zhang et al. 2025 and Wang et al. 2022: the planners against each other and the
libraries, what the texts leave open, planning time and latency."""

import experiments_batches
from candidates import ratios
from experiments_batches import PAPERS, Later
from experiments_data import Data, claims, times
from figures import batch_of
from report import table

OVER_MAGMA = "3.63x (A800; 3.36x in the text), 4.37x (MI210)"


def comparison(data: Data, later: Later) -> list[str]:
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


def other_readings(data: Data) -> list[str]:
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


def planning(data: Data, later: Later) -> list[str]:
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
