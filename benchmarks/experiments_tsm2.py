"""The section of docs/experiments.md on the experiments of Rivera et al. with the paper's own kernels and column-major
matrices (tsm2_ablation.cu)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean

from report import table
from workloads import read_csv

NOT_YET = "not measured yet"
PRECISIONS = ("fp32", "fp64")
IN_FLIGHT = ("in flight, 8 stages", "in flight, 16 stages")


@dataclass(frozen=True)
class Timed:
    """A line of tsm2_ablation's output."""

    experiment: str
    kernel: str
    precision: str
    m: int
    k: int
    n: int
    t1: int
    t2: int
    t3: int
    tcf: int
    us: float
    of_peak: float  # the bytes of A, B and C in this time, as a fraction of the memory's peak bandwidth
    nbad: int

    @property
    def size(self) -> tuple[str, int, int, int]:
        return self.precision, self.m, self.k, self.n


def read(file: Path) -> list[Timed]:
    """What was measured; nothing where the file is missing. Raises ValueError for a wrong result."""
    rows = list(read_csv(Timed, file)) if file.exists() else []
    for row in rows:
        if row.nbad:
            raise ValueError(f"{file}: {row.kernel} computed {row.experiment} {row.size} wrong")
    return rows


def fastest_of(rows: Iterable[Timed], *kernels: str) -> dict[tuple[str, int, int, int], Timed]:
    """The fastest row of some kernels for each size."""
    found: dict[tuple[str, int, int, int], Timed] = {}
    for row in rows:
        if row.kernel in kernels and (row.size not in found or row.us < found[row.size].us):
            found[row.size] = row
    return found


def _speedups(rows: Sequence[Timed], kernels: Sequence[str], other: str) -> list[float]:
    faster, slower = fastest_of(rows, *kernels), fastest_of(rows, other)
    return [slower[size].us / row.us for size, row in faster.items() if size in slower]


def _range(values: Sequence[float]) -> str:
    """ "1.50x (0.90-2.10x)": the geometric mean, the least and the largest."""
    return f"{geometric_mean(values):.2f}x ({min(values):.2f}-{max(values):.2f}x)" if values else NOT_YET


def _share(rows: Iterable[Timed]) -> str:
    """The range of the shares of the peak bandwidth."""
    shares = sorted(row.of_peak for row in rows)
    return f"{shares[0]:.0%}-{shares[-1]:.0%}" if shares else NOT_YET


def _of(rows: Iterable[Timed], **values: object) -> list[Timed]:
    """The rows whose fields have these values."""
    return [row for row in rows if all(getattr(row, name) == value for name, value in values.items())]


def _versions(rows: Sequence[Timed]) -> list[str]:
    def cells(kernels: Sequence[str], other: str) -> list[str]:
        return [_range(_speedups(_of(rows, precision=p), kernels, other)) for p in PRECISIONS]

    steps = (
        ("V1 over V0: outer products", "2.2-4.7x", ("V1",), "V0"),
        ("V2 over V1: B in shared memory", "1.1-2.1x", ("V2",), "V1"),
        ("V3 over V2: prefetch", "1.3-3.5x", ("V3",), "V2"),
        ("asynchronous copies over V3 (ours)", "", IN_FLIGHT, "V3"),
        ("V3 over cuBLAS", "1.1-3.2x (P100, M40, V100)", ("V3",), "cuBLAS"),
        ("asynchronous copies over cuBLAS (ours)", "", IN_FLIGHT, "cuBLAS"),
    )
    columns = (2, 4, 8, 16)

    def shares(kernels: Sequence[str], precision: str) -> list[str]:
        fastest = fastest_of(rows, *kernels).values()
        return [_share(_of(fastest, precision=precision, n=n)) for n in columns]

    return [
        "### TSM2 version by version (Fig. 4 and 9), and bandwidth (Fig. 5 and 10)",
        "",
        "Sizes are 10240, 15360, 20480, 25600 and 30720, squared, times 2, 4, 8 and 16 columns; t1 = 128, t2 = n and "
        "t3 = 4, the paper's parameters for a K40c. A thread of V3 has t3 elements of A in flight. In our variant they "
        "are copied asynchronously to shared memory, 256 or 512 bytes of each row at once (the faster of both, and of "
        "64 and 128 threads, counts).",
        "",
        *table(("", "paper", *PRECISIONS), ((what, paper, *cells(own, other)) for what, paper, own, other in steps)),
        "",
        "Bytes of A, B and C in the time of the call, as a fraction of the memory's peak bandwidth (the paper: V3 "
        "reaches 12.5-26.6 points more than cuBLAS on a K40c, and 17-47.6 on a P100):",
        "",
        *table(
            ("", *(f"{n} columns" for n in columns)),
            (
                (f"{title}, {precision}", *shares(kernels, precision))
                for precision in PRECISIONS
                for title, kernels in (("V3", ("V3",)), ("asynchronous copies", IN_FLIGHT), ("cuBLAS", ("cuBLAS",)))
            ),
        ),
    ]


def _parameters(rows: Sequence[Timed]) -> list[str]:
    found = []
    for precision in PRECISIONS:
        mine = _of(rows, precision=precision)
        if not mine:
            found.append((precision, NOT_YET, NOT_YET, NOT_YET))
            continue
        best = min(mine, key=lambda row: row.us)
        (papers,) = (row for row in mine if (row.t1, row.t2, row.t3) == (128, 16, 4))
        narrow = min((row for row in mine if row.t2 == 8), key=lambda row: row.us)
        found.append(
            (
                precision,
                f"{best.t1}, {best.t2}, {best.t3}",
                f"{papers.us / best.us:.2f}x",
                f"{narrow.us / best.us:.2f}x",
            )
        )
    return [
        "### Parameters of V3 (section 3.6.3; t2 of Fig. 6 and 7)",
        "",
        "20480 x 20480 times 16 columns, with t1 of 64, 128 and 256, t2 of 4, 8 and 16, and t3 of 1 to 16. The paper's "
        "model takes t2 = 16 on a K40c, 8 on an M40 and 4 on a P100.",
        "",
        *table(("", "fastest t1, t2, t3", "time with 128, 16, 4", "time with the best t2 = 8"), found),
    ]


def _small_k(rows: Sequence[Timed]) -> list[str]:
    mine = [row for row in rows if row.experiment in ("uneven", "small k")]
    depths = sorted({row.k for row in mine})
    body = []
    for precision in PRECISIONS:
        for kernel, names in (("V3", ("V3",)), ("asynchronous copies", IN_FLIGHT), ("cuBLAS", ("cuBLAS",))):
            fastest = fastest_of(_of(mine, precision=precision), *names)
            shares = [f"{row.of_peak:.0%}" if (row := fastest.get((precision, 15360, k, 16))) else "-" for k in depths]
            if fastest or (not mine and kernel == "V3"):
                body.append((f"{kernel}, {precision}", *(shares or [NOT_YET])))
    return [
        "### k smaller than m (Fig. 8), and very small k (Fig. 11)",
        "",
        "15360 x k times 16 columns, share of the peak bandwidth. The paper sees very little difference in bandwidth "
        "in Fig. 8, at float64; in Fig. 11 the bandwidth of V3 falls with k.",
        "",
        *table(("", *(f"k = {k}" for k in depths)) if depths else ("", "all k"), body),
    ]


def _tcf(rows: Sequence[Timed]) -> list[str]:
    def fastest(precision: str, m: int, *kernels: str) -> list[Timed]:
        return list(fastest_of(_of(rows, precision=precision, m=m), *kernels).values())

    sweep = _of(rows, m=10**7, k=16, n=16)
    factors = sorted({row.tcf for row in sweep if row.tcf})
    titles = (("Algorithm 6", "V3"), ("Algorithm 7", "ISM2-2"), ("Algorithm 7, C from zero", "ISM2-2 from zero"))
    body = []
    for precision in PRECISIONS:
        for title, kernel in titles:
            by_tcf = {row.tcf: row for row in sweep if (row.precision, row.kernel) == (precision, kernel)}
            cells = [f"{by_tcf[tcf].of_peak:.0%}" for tcf in factors] if by_tcf else [NOT_YET]
            body.append((f"{title}, {precision}", *cells))
    papers = {"fp32": (1, 1, 2, 8), "fp64": (1, 1, 1, 4)}
    profiled = []
    for precision in PRECISIONS:
        for i in range(4):
            m = 10 ** (4 + i)
            first = _of(rows, kernel="V3", precision=precision, m=m)
            factors_of_m = sorted({row.tcf for row in first})
            total = {tcf: sum(row.us for row in first if row.tcf == tcf) for tcf in factors_of_m if tcf <= 32}
            mine = _of(rows, precision=precision, m=m)
            profiled.append(
                (
                    f"10^{4 + i}, {precision}",
                    str(papers[precision][i]),
                    str(min(total, key=total.__getitem__)) if total else NOT_YET,
                    *(_range(_speedups(mine, (kernel,), "cuBLAS")) for kernel in ("V3", "ISM2-2", "ISM2-2 from zero")),
                    _share(fastest(precision, m, "V3", "ISM2-2", "ISM2-2 from zero")),
                    _share(fastest(precision, m, "cuBLAS")),
                )
            )
    head = ("rows", "tcf, paper", "tcf, here", *(title for title, _ in titles), "share of peak", "cuBLAS's")
    return [
        "### ISM2: tcf (Fig. 12), and both optimizations (Fig. 13 and 14)",
        "",
        "10^7 x 16 times 16 columns: share of the peak bandwidth. In the paper it falls clearly only from tcf = 64 on. "
        "Algorithm 7 is the second optimization (tiles of A interleaved, C reloaded and the next C prefetched). As it "
        "is printed, it reads C in the first part of K, too, which is all of K here; from zero it does not.",
        "",
        *table(("", *(f"tcf = {tcf}" for tcf in factors)) if factors else ("", "all tcf"), body),
        "",
        "k and n are 8 and 16. Speedups over cuBLAS with the best tcf tried for each size (the paper: 1.1-3.5x in "
        "float32 and 1.0-1.7x in float64, and up to 55% of the peak); `tcf, here` is the one value that is best for "
        "all four sizes of Algorithm 6:",
        "",
        *table(head, profiled),
    ]


def section(every: Sequence[Timed]) -> list[str]:
    rows = {name: [row for row in every if row.experiment == name] for name in ("versions", "parameters", "tcf")}
    where = "" if every else " They have not been measured yet."
    return [
        "## The paper's own kernels (Rivera et al., Fig. 4-14)",
        "",
        "`benchmarks/tsm2_ablation.cu` has the kernels of the paper, version by version, with column-major matrices as "
        "in the paper, and calls cuBLAS on the same matrices. Speedups are geometric means, with the least and the "
        f"largest, on an H200.{where}",
        "",
        *_versions(rows["versions"]),
        "",
        *_parameters(rows["parameters"]),
        "",
        *_small_k(every),
        "",
        *_tcf(rows["tcf"]),
        "",
        "The paper's M40 and P100 (Fig. 6 and 7) are not at hand; their parameters are tested (see above).",
    ]
