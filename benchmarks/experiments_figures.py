"""The list of the papers' numbered figures and tables on docs/experiments.md: where each has its counterpart, or why it
has none."""

from report import table

# A word of this page, and the section of it that the list links to.
SECTIONS = {
    "tiling": "tiling-alone-tiling-and-batching-li-2019-fig-8-and-9",
    "Li's grid": "lis-own-grid",
    "branches": "branches-of-networks-li-2019-fig-10",
    "planners": "the-planners-against-each-other-and-the-libraries-wang-2022-zhang-2025-fig-4-and-5",
    "TLP": "the-new-tlp-zhang-2025-fig-8-and-9-and-what-else-the-texts-leave-open",
    "occupancy": "kernel-occupancy-zhang-2025-fig-6-and-work-per-thread-table-3",
    "planning time": "planning-time-zhang-2025-fig-7",
    "latency": "latency-by-batch-size-zhang-2025-fig-10",
    "threads": "threads-and-tiles-zhang-2025-fig-3",
    "TSM2 and ISM2": "tsm2-and-ism2-rivera-et-al-speedups-over-cublas-fig-4-and-9",
    "the paper's kernels": "the-papers-own-kernels-rivera-et-al-fig-4-14",
}
CATALOGUE, ILLUSTRATION = "csrc/tiles.def has these tiles", "an illustration, not a result"

# (paper, figure or table, what it shows, its counterpart). A word in {} is one of SECTIONS.
FIGURES = (
    ("Li", "Fig. 1, 3, 4, 5", "tiles, challenges, overview", ILLUSTRATION),
    ("Li", "Fig. 2, 7", "the kernel and the interface", "our kernels: [how it works](internals/how_it_works.md)"),
    ("Li", "Fig. 6", "the five arrays of a plan", "`Plan.blocks` shows what they hold"),
    ("Li", "Table 1", "tiles of a single product", "none: the paper replaces them by Table 2 for batches"),
    ("Li", "Table 2", "twelve strategies", CATALOGUE),
    ("Li", "Fig. 8, 9", "tiling, and tiling and batching, over MAGMA", "{tiling}, {Li's grid}"),
    ("Li", "Fig. 10", "GoogLeNet's modules over MAGMA", "{branches}"),
    ("Li", "Fig. 11", "five other GPUs", "plans only: CUDA 13 compiles for none of them; the device table has M60, "
     "GTX Titan X, P100, GTX 1080 Ti and Titan Xp"),
    ("Wang", "all", "speedups", "our copy of the paper has neither figures nor numbers; {planners}"),
    ("Zhang", "Fig. 1, 2", "tiles of a batch", ILLUSTRATION),
    ("Zhang", "Table 1", "terms of AMD and NVIDIA", "none: no result"),
    ("Zhang", "Table 2", "W_CP and W_DL of three tiles", "`Plan.work_per_thread`; tests compute the table"),
    ("Zhang", "Table 3", "the five tiles, W_CP and W_DL", f"{CATALOGUE}; {{occupancy}}"),
    ("Zhang", "Fig. 3", "threads of a tile", "{threads}"),
    ("Zhang", "Tables 4, 5", "the MI210 and the A800", "the device table has both"),
    ("Zhang", "Fig. 4, 5", "the planners on an MI210 and an A800", "{planners}, on an H100: no kernel has run on an "
     "AMD GPU"),
    ("Zhang", "Fig. 6", "occupancy", "{occupancy}, with cuBLAS's; other libraries have not been profiled"),
    ("Zhang", "Fig. 7", "time of planning", "{planning time}"),
    ("Zhang", "Fig. 8, 9", "the new TLP", "{TLP}, {planners}"),
    ("Zhang", "Fig. 10", "latency", "{latency}"),
    ("Zhang", "Fig. 11", "Inception modules over MIOpen and cuDNN", "{branches}, for 1x1 convolutions by cuDNN"),
    ("Zhang", "Table 6", "sizes of Inception modules", "`inception_1` to `inception_9`"),
    ("Rivera", "Fig. 1, 2, 3", "bank conflicts, prefetch", ILLUSTRATION),
    ("Rivera", "Fig. 4, 9, 13", "V0 to V3 on a K40c, and on a V100; both optimizations over cuBLAS",
     "{the paper's kernels}, {TSM2 and ISM2}"),
    ("Rivera", "Fig. 5, 8, 10, 11, 12, 14", "bandwidth, also of small k, by tcf and of ISM2", "{the paper's kernels}"),
    ("Rivera", "Fig. 6, 7", "M40 and P100", "neither is at hand; t2 is swept: {the paper's kernels}"),
)  # fmt: skip


def section() -> list[str]:
    links = {word: f"[{word}](#{anchor})" for word, anchor in SECTIONS.items()}
    return [
        "## Every figure and table",
        "",
        *table(
            ("paper", "figure or table", "what it shows", "here"),
            ((paper, figure, shows, here.format_map(links)) for paper, figure, shows, here in FIGURES),
        ),
    ]
