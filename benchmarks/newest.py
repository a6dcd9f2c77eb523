"""The newest figures of README.md and docs, and the picture of the front page: no figure in these tables is typed by
hand. A cell without a figure in a committed file says "never measured".

  python benchmarks/newest.py     after a new file of benchmarks/results

A table stands between two comments that name it; report.py and ragged_report.py write those of kernels alone.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from newest_experts import eight_bits, experts, mixed, moe_peers
from newest_files import NEVER, duration, rows_of, table
from newest_lists import best_peers, scaled_lists
from newest_optimizers import devices, muon, muon_errors, muon_iterations, muon_losses
from newest_uses import draw, headline, overview, traced

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
COMMAND = "python benchmarks/newest.py"
PICTURE = DOCS / "why.svg"


def loop() -> list[str]:
    titles = {
        "[16,128]x64": "64 products, M, N and K 16 to 128", "[16,256]x64": "64 products, M, N and K 16 to 256",
        "[16,128]x256": "256 products, M, N and K 16 to 128", "[16,256]x256": "256 products, M, N and K 16 to 256",
        "moe_e8_k1024_t4096": "`moe`, 8 experts", "moe_e64_k1024_t4096": "`moe`, 64 experts",
    }  # fmt: skip
    rows = rows_of("h100_loop.csv")
    times = {(row["workload"], row["precision"], row["peer"] == "vbgemm"): row for row in rows}
    lines = []
    for (workload, precision, ours), row in times.items():
        if ours:
            other = times[workload, precision, False]
            a, b = float(row["graph_us"]), float(other["graph_us"])
            kind = {"fp32": 'float32 at `"highest"`', "bf16": "bfloat16"}[precision]
            against = {"xla_loop": "XLA's loop of dots", "ragged_dot": "`jax.lax.ragged_dot`"}[other["peer"]]
            compiled = [line["note"].rsplit("compile ", 1)[1] for line in (row, other)]
            lines.append(
                (f"{titles[workload]}, {kind}", f"{a:.0f}", f"{b:.0f} ({against})", f"{b / a:.1f}x", *compiled)
            )
    lines.sort(key=lambda line: line[0].startswith("`moe`"))
    head = ("workload", "jax_vbgemm (us)", "alternative (us)", "speedup", "compile: jax_vbgemm", "alternative")
    return table(head, lines)


def irreps() -> list[str]:
    of = {(row["order"], row["layout"], row["way"]): 1e6 * float(row["loop_s"]) for row in rows_of("h100_irreps.csv")}

    def cells(order: str) -> list[str]:
        found = []
        for layout, other in (("mul_ir", "e3nn-jax"), ("ir_mul", "cuequivariance")):
            ours, theirs = of[order, layout, "vbgemm"], of[order, layout, other]
            found += [f"{ours:.1f}", f"{theirs:.1f} ({theirs / ours:.1f})"]
        return found

    orders = {"map": "map", "gradient": "gradient", "gradient2": "gradient of gradient"}
    head = ("", "`mul_ir`: jax_vbgemm", "e3nn-jax", "`ir_mul`: jax_vbgemm", "cuequivariance")
    return table(head, [(title, *cells(order)) for order, title in orders.items()])


def sparse() -> list[str]:
    lines = [
        (row["way"].replace("vbgemm", "jax_vbgemm"), f"{1e6 * float(row['loop_s']):.0f}", f"{float(row['ratio']):.2f}",
         f"{float(row['trace_s']) + float(row['compile_s']):.1f}", row["dots"], row["calls"])
        for row in rows_of("h100_block_sparse.csv")
    ]  # fmt: skip
    return table(("way", "us", "over ours", "trace and compile (s)", "dots", "calls"), lines)


def integers() -> list[str]:
    kinds = [("bfloat16", ""), *((kind, scales) for kind in ("int8", "float8_e4m3fn") for scales in ("rows", "blocks"))]
    kinds.append(("float8_e4m3fn", "rows, fast accumulation"))
    of: dict[tuple[str, ...], dict[tuple[str, str], str]] = {}
    for row in rows_of("h200_ragged_w8a8.csv"):
        case = tuple(row[name] for name in ("rows", "groups", "k", "n"))
        of.setdefault(case, {})[row["factors"], row["scales"]] = row["tflops"]
    head = ["rows, groups, K, N", "bfloat16", *(f"{kind}, scales of {scales}" for kind, scales in kinds[1:])]
    return table(head, [(", ".join(case), *(rates.get(kind, NEVER) for kind in kinds)) for case, rates in of.items()])


def chain() -> list[str]:
    titles = {"packed": "blocks in one buffer", "arrays": "blocks as arrays", "symmray fused": "symmray fused"}
    of: dict[str, dict[str, str]] = {}
    for row in rows_of("h200_block_chain.csv"):
        case = ("norm and gradient" if row["gradient"] == "True" else "norm") + f", scale {row['scale']}"
        compiled = float(row["trace_s"]) + float(row["compile_s"])
        cell = f"{1e6 * float(row['call_s']):.0f} us ({float(row['ratio']):.2f}), {compiled:.1f} s"
        of.setdefault(case, {})[row["way"]] = cell
    return table(("", *titles.values()), [(case, *(cells[way] for way in titles)) for case, cells in of.items()])


def packed() -> list[str]:
    titles = {
        "products, packed": "packed", "products, lists": "lists", "products, lists, XLA": "lists, XLA's dots",
        "packed operands + 1": "for comparison: `x + 1` of the two packed operands",
    }  # fmt: skip
    of = {row["way"]: row for row in rows_of("h100_packed.csv") if row["table"] == "dispatch"}
    lines = [
        (title, *(f"{1e3 * float(of[way][key]):.2f} ms" for key in ("call_seconds", "seconds")))
        for way, title in titles.items()
    ]
    return table(("operands and results", "until the call returns", "until the results are there"), lines)


def networks() -> list[str]:
    devices = {"CPU": "cpu_networks.csv", "H200": "h200_whole_programs.csv"}
    found: dict[str, dict[str, dict[str, dict[str, str]]]] = {}
    for device, name in devices.items():
        for row in rows_of(name):
            ways = found.setdefault(f"`{row['program']}`, {row['step']}", {}).setdefault(device, {})
            ways[row["variant"]] = row

    lines = []
    for title, of in sorted(found.items()):
        if any("networks" in ways for ways in of.values()):
            cells = []
            for device in devices:
                ways = of.get(device, {})
                before = ways["group"]["before_us"] if ways else ""
                cells += [f"{float(before):.0f}", *(_after(ways[way], before) for way in WAYS)] if ways else 3 * [NEVER]
            lines.append((title, *cells))
    head = [f"{device}: {way}" for device in devices for way in ("loop", *(f"`{way}`" for way in WAYS))]
    return table(("program", *head), lines)


WAYS = ("group", "networks")


def programs() -> list[str]:
    """But for those whose rows the guide on networks has."""
    titles = {
        "nequix": "nequix, 16,384 edges", "mace": "mace-jax, 16,384 edges", "qwen3": "tunix, Qwen3's experts",
        "gemma4": "tunix, Gemma 4's experts", "peps": "quimb and symmray, PEPS",
        "experts": "stand-in: loop over experts", "lora": "stand-in: adapters",
        "blocks": "stand-in: matrix product state",
        "messages": "stand-in: messages of an equivariant network", "mlp": "stand-in: dense layers",
    }  # fmt: skip
    found: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for row in rows_of("h200_whole_programs.csv"):
        if row["program"] in titles:
            found.setdefault((row["program"], row["step"]), {})[row["variant"]] = row

    lines = []
    for (program, step), variants in sorted(found.items(), key=lambda item: list(titles).index(item[0][0])):
        rows = list(variants.values())
        before = rows[0]["before_us"]
        compiled = [float(rows[0]["before_compile_s"]), *(float(row["after_compile_s"]) for row in rows)]
        special = ", ".join(f"`{name}` {_after(row, before)}" for name, row in variants.items() if name != "group")
        group = _after(variants["group"], before) if "group" in variants else ""
        lines.append((
            f"{titles[program]}, {step}", f"{float(before):.0f}", group or "-", special or "-",
            ", ".join(f"{s:.1f}" for s in compiled),
        ))  # fmt: skip
    return table(("program", "before", "`group`", "by the function for it", "compilation (s)"), lines)


def _after(row: dict[str, str], before: str) -> str:
    """The time of a whole program and what it gains, of another time than `before` if it was measured another day."""
    of = "" if row["before_us"] == before else f", of {float(row['before_us']):.0f}"
    return f"{float(row['after_us']):.0f} ({float(row['ratio']):.2f}{of})"


def layers() -> list[str]:
    """GoogLeNet's branches and adapters; of two files with one case the newer one counts."""
    found: dict[tuple[str, str, str], tuple[dict[str, str], dict[str, str], str]] = {}
    superseded = {"googlenet_b1_forward+backward", "googlenet_b32_forward", "googlenet_b32_forward+backward"}
    for name, device in (("h100_conv.csv", "H100"), ("h100_flax.csv", "H100"), ("cpu_flax.csv", "CPU")):
        rows = rows_of(name)
        ours = {(row["workload"], row["precision"]): row for row in rows if row["peer"] == "vbgemm"}
        for row in rows:
            if row["peer"] in ("flax_linear", "flax_lora") and not (
                name == "h100_flax.csv" and row["workload"] in superseded
            ):
                mine = ours[row["workload"], row["precision"]]
                kind = "bfloat16" if "bfloat16" in row["note"] else "float32"
                found.setdefault((device, row["workload"], kind), (mine, row, name))

    def part(note: str, start: str) -> str:
        return next(piece for piece in note.split("; ") if start in piece)

    titles = {
        "googlenet_b1": "GoogLeNet's nine blocks, 1 image", "googlenet_b32": "GoogLeNet's nine blocks, 32 images",
        "lora_t16": "32 adapters (8 to 64), 16 tokens each", "lora_t512": "32 adapters (8 to 64), 512 tokens each",
    }  # fmt: skip
    lines = []
    for workload, title in titles.items():
        for device, kind in (("H100", "bfloat16"), ("H100", "float32"), ("CPU", "float32")):
            cells = []
            for step in ("forward", "forward+backward"):
                pair = found.get((device, f"{workload}_{step}", kind))
                if pair is None:
                    cells += [NEVER, ""]
                    continue
                mine, theirs = (float(row["graph_us"]) for row in pair[:2])
                compiled = " / ".join(part(row["note"], "compile ").split()[1] for row in (pair[1], pair[0]))
                cells += [f"{duration(theirs)} / {duration(mine)} ({theirs / mine:.2f}x)", f"{compiled} s"]
            if cells[0] != NEVER or cells[2] != NEVER:
                lines.append((title, f"{device}, {kind}", *cells))
    head = ("model", "device, dtype", "forward: loop / ours", "compile", "with backward: loop / ours", "compile")
    return table(head, lines)


REGIONS: dict[str, tuple[Sequence[Path], Callable[[], list[str]]]] = {
    "headline": ([ROOT / "README.md"], headline),
    "overview": ([DOCS / "speed.md"], overview),
    "traced": ([DOCS / "speed.md"], traced),
    "loop": ([DOCS / "speed.md"], loop),
    "best_peers": ([DOCS / "speed.md"], best_peers),
    "muon": ([DOCS / "guides" / "optax.md"], muon),
    "muon_errors": ([DOCS / "guides" / "optax.md"], muon_errors),
    "muon_losses": ([DOCS / "guides" / "optax.md"], muon_losses),
    "muon_iterations": ([DOCS / "guides" / "optax.md"], muon_iterations),
    "devices": ([DOCS / "guides" / "many_devices.md"], devices),
    "mixed": ([DOCS / "guides" / "moe.md"], mixed),
    "moe_peers": ([DOCS / "guides" / "moe.md"], moe_peers),
    "experts": ([DOCS / "guides" / "many_devices.md"], experts),
    "irreps": ([DOCS / "guides" / "irreps.md"], irreps),
    "eight_bits": ([DOCS / "guides" / "moe.md"], eight_bits),
    "scaled_lists": ([DOCS / "guides" / "precision.md"], scaled_lists),
    "integers": ([DOCS / "guides" / "ragged_dot.md"], integers),
    "sparse": ([DOCS / "guides" / "block_sparse.md"], sparse),
    "chain": ([DOCS / "guides" / "block_sparse.md"], chain),
    "packed": ([DOCS / "guides" / "views.md"], packed),
    "networks": ([DOCS / "guides" / "networks.md"], networks),
    "programs": ([DOCS / "guides" / "group.md"], programs),
    "layers": ([DOCS / "guides" / "flax.md"], layers),
}


def filled(text: str, name: str, lines: Sequence[str]) -> str:
    """The text with a table in its place."""
    begin, end = f"<!-- {name}: by {COMMAND} -->\n", f"<!-- end of {name} -->"
    start = text.index(begin) + len(begin)
    return "\n".join((text[:start], *lines, "", text[text.index(end, start) :]))


def pages() -> dict[Path, str]:
    """Each page with its tables as they should be."""
    found: dict[Path, str] = {}
    for name, (files, make) in REGIONS.items():
        for file in files:
            found[file] = filled(found.get(file, file.read_text()), name, make())
    return found


def main() -> None:
    made: dict[Path, Any] = pages()
    for file, text in made.items():
        file.write_text(text)
        print(file.relative_to(ROOT))
    draw(PICTURE)
    print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
