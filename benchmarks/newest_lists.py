"""The tables of lists: beside the best peer of each, on one GPU in turns (best_peers.py), and of 8 bits."""

from newest_files import RESULTS, rows_of, table
from peer_gains import cells_of, grouped
from workloads import Row, read_csv

FILE = "h200_best_peers.csv"
PRECISIONS = {"bf16": "bfloat16", "tf32": "TF32"}


def best_peers() -> list[str]:
    groups = grouped(cells_of(read_csv(Row, RESULTS / FILE)))
    batches = sorted({batch for *_, batch in groups})
    lines = []
    for family, new, precision in dict.fromkeys(key[:3] for key in groups):
        found = [groups[family, new, precision, batch] for batch in batches]
        cells = [f"{group.gain:.2f}x ({group.least:.2f}), {group.share:.0%}" for group in found]
        slower = f"{sum(group.slower for group in found)} of {sum(len(group.cells) for group in found)}"
        lines.append((f"`{family}`{', another seed' * new}, {PRECISIONS[precision]}", *cells, slower))
    return table(("lists", *(f"batch {batch}" for batch in batches), "a peer is faster"), lines)


def scaled_lists() -> list[str]:
    """Both times of each list of `Scaled`, the chosen way's in bold."""
    kinds = {
        ("int8", "rows"): "int8, scales of rows", ("float8_e4m3fn", "rows"): "float8_e4m3fn, scales of rows",
        ("float8_e4m3fn", "blocks"): "float8_e4m3fn, scales of blocks",
    }  # fmt: skip
    lines: dict[str, list[str]] = {}
    for row in rows_of("h200_scaled_lists.csv"):
        times = {way: f"{float(row[f'{way}_us']):.0f}" for way in ("call", "each")}
        times[row["chosen"]] = f"**{times[row['chosen']]}**"
        lines.setdefault(row["size"], [row["size"]]).append(", ".join(times.values()))
    return table(("M = N = K", *kinds.values()), list(map(tuple, lines.values())))
