"""The newest figures of README.md and docs, and the picture of the front page: no figure in these tables is typed by
hand. A cell without a figure in a committed file says "never measured".

  python benchmarks/newest.py     after a new file of benchmarks/results

A table stands between two comments that name it; report.py and ragged_report.py write those of kernels alone.
"""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from figures import source_of
from plots import COLOURS, STYLE, TEXT

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DOCS = ROOT / "docs"
COMMAND = "python benchmarks/newest.py"
PICTURE = DOCS / "why.svg"
NEVER = "never measured"

# Columns of the overview, and what the devices of its files begin with.
DEVICES = {"H100": ("NVIDIA H100",), "H200": ("NVIDIA H200", "2 x NVIDIA H200"), "CPU": ("CPU",)}


class Use(NamedTuple):
    """A row of the overview: a use, what it is compared with, and where its figures are: for each file the name of a
    pair of times (`pairs_of`)."""

    use: str
    against: str
    pairs: Sequence[tuple[str, str]]


USES = (
    Use("64 products of sizes 16 to 256, float32", "XLA's loop of dots", [("h100_loop.csv", "[16,256]x64")]),
    Use("MoE layer (Qwen3, 32 tokens)", "torch `_grouped_mm`", [("h100_moe_layer.csv", "qwen3_30b 32")]),
    Use("MoE layer (Qwen3, 4096 tokens), training step", "tokamax", [("h100_moe_layer.csv", "qwen3_30b 4096 step")]),
    Use("experts of Qwen3 in tunix, gradient", "the program's loop", [("h200_whole_programs.csv", "qwen3 gradient")]),
    Use("Muon, 126 small matrices (yolo26n)", "`optax.contrib.muon`", [("h100_muon.csv", "yolo26n")]),
    Use(
        "Muon, GPT-2 small",
        "`optax.contrib.muon`",
        [("h100_muon.csv", "gpt2_small"), ("h200_muon_devices.csv", "gpt2_small")],
    ),
    Use(
        "Muon, GPT-2 small, float16 iterates of Gram matrices",
        "`optax.contrib.muon`",
        [("h200_muon_iterations.csv", "gpt2_small")],
    ),
    Use(
        "32 LoRA adapters of rank 8 to 64, training",
        "a loop of `nnx.LoRA`",
        [("h100_flax.csv", "lora_t16_forward+backward"), ("cpu_flax.csv", "lora_t16_forward+backward")],
    ),
    Use(
        "GoogLeNet's branches, 32 images, training",
        "a loop of `nnx.Linear`",
        [("h100_conv.csv", "googlenet_b32_forward+backward bf16"), ("cpu_flax.csv", "googlenet_b32_forward+backward")],
    ),
    Use("equivariant linear map, gradient", "e3nn-jax", [("h100_irreps.csv", "gradient mul_ir e3nn-jax")]),
    Use("block-sparse contraction, 324 products", "symmray", [("h100_block_sparse.csv", "symmray fused")]),
    Use("1000 products of packed operands, one call", "lists of arrays, XLA's dots", [("h100_packed.csv", "dispatch")]),
)  # fmt: skip


# Of the front page: uses up to their first comma.
HEADLINES = {
    "64 products of sizes 16 to 256", "MoE layer (Qwen3", "Muon", "32 LoRA adapters of rank 8 to 64",
    "equivariant linear map", "GoogLeNet's branches",
}  # fmt: skip


def rows_of(name: str) -> list[dict[str, str]]:
    with (RESULTS / name).open(newline="") as lines:
        return list(csv.DictReader(lines))


def pairs_of(name: str) -> dict[str, tuple[float, float]]:
    """Microseconds of (this package, the alternative) in a file, by the name that USES gives the pair."""
    rows = rows_of(name)
    if name in ("h100_loop.csv", "h100_flax.csv", "cpu_flax.csv", "h100_conv.csv"):
        times = {(row["peer"], row["workload"], row["precision"]): float(row["graph_us"]) for row in rows}
        found = {}
        for (peer, workload, precision), us in times.items():
            if peer in ("xla_loop", "ragged_dot", "flax_linear", "flax_lora"):
                key = f"{workload} {precision}" if name == "h100_conv.csv" else workload
                found[key] = times["vbgemm", workload, precision], us
        return found
    if name == "h100_moe_layer.csv":
        of = {(row["peer"], row["model"], row["tokens"], row["direction"]): float(row["us"]) for row in rows}
        return {
            "qwen3_30b 32": tuple(of[peer, "qwen3_30b", "32", "forward"] for peer in ("vbgemm", "torch_grouped_mm")),
            "qwen3_30b 4096 step": tuple(
                of[peer, "qwen3_30b", "4096", "forward_backward"] for peer in ("vbgemm", "tokamax")
            ),
        }
    if name == "h200_whole_programs.csv":
        return {
            f"{row['program']} {row['step']}": (float(row["after_us"]), float(row["before_us"]))
            for row in rows
            if row["variant"] != "group"
        }
    if name == "h200_muon_iterations.csv":
        of = {(row["optimizer"], row["model"]): float(row["loop_us"]) for row in rows}
        return {model: (of["vbgemm float16_gram", model], us) for (way, model), us in of.items() if way == "optax"}
    if name in ("h100_muon.csv", "h200_muon_devices.csv"):
        one = [
            row for row in rows if row.get("devices", "1") == "1" and row.get("placement", "replicated") == "replicated"
        ]
        of = {(row["optimizer"], row["model"]): float(row["loop_us"]) for row in one}
        return {model: (of["vbgemm", model], us) for (optimizer, model), us in of.items() if optimizer == "optax"}
    if name == "h100_irreps.csv":
        of = {(row["way"], row["order"], row["layout"]): 1e6 * float(row["loop_s"]) for row in rows}
        return {
            f"{order} {layout} {way}": (of["vbgemm", order, layout], us)
            for (way, order, layout), us in of.items()
            if way != "vbgemm"
        }
    if name == "h100_block_sparse.csv":
        of = {row["way"]: 1e6 * float(row["loop_s"]) for row in rows}
        return {way: (of["vbgemm"], us) for way, us in of.items() if way != "vbgemm"}
    assert name == "h100_packed.csv", name
    of = {row["way"]: 1e6 * float(row["seconds"]) for row in rows if row["table"] == "dispatch"}
    return {"dispatch": (of["products, packed"], of["products, lists, XLA"])}


def source(name: str) -> dict[str, str]:
    return source_of(RESULTS / name, RESULTS / "sources.csv")


def duration(us: float) -> str:
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if us >= size:
            return f"{us / size:.3g} {unit}"
    return f"{us:.3g} us"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines)]


def overview() -> list[str]:
    """Speedup by use and device; a device without a figure has NEVER."""

    def cell(use: Use, starts: Sequence[str]) -> str:
        for name, pair in use.pairs:
            if source(name)["device"].startswith(tuple(starts)):
                ours, theirs = pairs_of(name)[pair]
                return f"**{theirs / ours:.2g}x** ({duration(theirs)} to {duration(ours)})"
        return NEVER

    lines = [(use.use, use.against, *(cell(use, starts) for starts in DEVICES.values())) for use in USES]
    return table(("use", "compared with", *DEVICES), lines)


def headline() -> list[str]:
    """The rows of the overview that the front page shows, each on the first device of its figures."""
    lines = []
    for use in USES:
        if use.use.split(",")[0] in HEADLINES:
            name, pair = use.pairs[0]
            ours, theirs = pairs_of(name)[pair]
            device = next(device for device, starts in DEVICES.items() if source(name)["device"].startswith(starts))
            lines.append(
                (use.use, use.against, f"**{theirs / ours:.2g}x** ({duration(theirs)} to {duration(ours)})", device)
            )
    return table(("inside one jitted program", "compared with", "times as fast", "device"), lines)


def traced() -> list[str]:
    """Where each figure of the overview is from."""
    names = sorted({name for use in USES for name, _ in use.pairs})
    lines = []
    for name in names:
        about = source(name)
        lines.append(
            (f"`benchmarks/results/{name}`", about["device"], about["date"], about["about"].split("; superseded")[0])
        )
    return table(("file", "device", "date", "what"), lines)


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


MODELS = {
    "yolo26n": "yolo26n",
    "vit_s": "ViT-S",
    "resnet50": "ResNet-50",
    "gpt2_small": "GPT-2 small",
    "llama": "a Llama layer (control)",
}


def muon() -> list[str]:
    of = {(row["model"], row["optimizer"]): row for row in rows_of("h100_muon.csv")}
    lines = []
    for model, title in MODELS.items():
        theirs, ours = of[model, "optax"], of[model, "vbgemm"]
        loops, calls = ([1e-3 * float(row[key]) for row in (theirs, ours)] for key in ("loop_us", "call_us"))
        lines.append((
            title, ours["matrices"], f"{loops[0]:.3g} / {loops[1]:.3g} ms", f"{loops[0] / loops[1]:.3g}x",
            f"{calls[0]:.3g} / {calls[1]:.3g} ms",
            f"{float(theirs['compile_s']):.1f} / {float(ours['compile_s']):.1f} s",
            f"{float(theirs['temp_mib']):.0f} / {float(ours['temp_mib']):.0f} MiB",
        ))  # fmt: skip
    return table(
        ("model", "matrices", "step in a loop", "speedup", "single call", "compile", "temporary memory"), lines
    )


def muon_iterations() -> list[str]:
    ways = ["vbgemm", "vbgemm gram", "vbgemm float16", "vbgemm float16_gram"]
    of = {(row["model"], row["optimizer"]): float(row["loop_us"]) for row in rows_of("h200_muon_iterations.csv")}
    lines = []
    for model in dict.fromkeys(model for model, _ in of):
        theirs = of[model, "optax"]
        ours = [f"{of[model, way]:.0f} us ({theirs / of[model, way]:.3g}x)" for way in ways]
        lines.append((MODELS[model], f"{theirs:.0f} us", *ours))
    return table(("model", "optax", "default", "Gram", "float16", "float16, Gram"), lines)


def muon_errors() -> list[str]:
    wanted = [("tf32", "X"), ("tf32", "Gram"), ("float16", "X"), ("float16", "Gram"), ("bfloat16", "X")]
    of = {tuple(row.values())[:5]: row for row in rows_of("cpu_muon_errors.csv")}
    lines = []
    for matrix, name, steps in dict.fromkeys(key[:3] for key in of):
        if (name, steps) in (("simple", "5"), ("polar_express", "8")):
            rounding = [of[matrix, name, steps, *key]["rounding"] for key in wanted]
            lines.append(
                (matrix, f"{name}, {steps} steps", of[matrix, name, steps, "float32", "X"]["polar"], *rounding)
            )
    head = ["TF32", "TF32, Gram", "float16", "float16, Gram", "bfloat16"]
    return table(("matrix", "coefficients", "distance from U V^T", *head), lines)


def devices() -> list[str]:
    lines = []
    for title, name, model in (
        ("GPT-2 small, 48 matrices, H100", "h100_muon_devices.csv", "gpt2_small"),
        ("GPT-2 small, 48 matrices, H200", "h200_muon_devices.csv", "gpt2_small"),
        ("GPT-2 medium, 96 matrices, H200", "h200_muon_devices.csv", "gpt2_medium"),
        ("ResNet-50, 53 matrices, H200", "h200_muon_devices.csv", "resnet50"),
        ("8 stacked Llama layers, 7 stacks, H200", "h200_muon_devices.csv", "llama_layers"),
    ):
        of = {
            (row["optimizer"], row["devices"], row["placement"]): 1e-3 * float(row["loop_us"])
            for row in rows_of(name)
            if row["model"] == model
        }

        def cell(count: str, placement: str, of: dict[tuple[str, str, str], float] = of) -> str:
            ours, theirs = of.get(("vbgemm", count, placement)), of.get(("optax", count, placement))
            return NEVER if ours is None or theirs is None else f"{ours:.3g} (optax {theirs:.3g})"

        ways = [("1", "replicated"), *(("2", way) for way in ("replicated", "rows", "columns", "fsdp"))]
        lines.append((title, *(cell(*way) for way in ways)))
    return table(
        ("model", "one device", "two, replicated", "two, by rows", "two, by columns", "two, by larger side"), lines
    )


def experts() -> list[str]:
    of = {(row["layer"], row["direction"]): 1e-3 * float(row["us"]) for row in rows_of("h200_expert_parallel.csv")}
    titles = {
        "one_device": "one device", "expert_mlp": "two devices, `expert_mlp(mesh_axis=)`",
        "expert_parallel": "two devices, `expert_parallel`",
    }  # fmt: skip
    lines = [
        (title, *(f"{of[layer, direction]:.1f}" for direction in ("forward", "forward_backward")))
        for layer, title in titles.items()
    ]
    return table(("", "forward (ms)", "forward and backward (ms)"), lines)


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


def programs() -> list[str]:
    titles = {
        "nequix": "nequix, 16,384 edges", "fennol": "FeNNol, networks by element", "qwen3": "tunix, Qwen3's experts",
        "peps": "quimb and symmray, PEPS", "experts": "stand-in: loop over experts", "lora": "stand-in: adapters",
        "species": "stand-in: networks by element", "blocks": "stand-in: matrix product state",
        "messages": "stand-in: messages of an equivariant network",
    }  # fmt: skip
    found: dict[tuple[str, str], dict[str, dict[str, str]]] = {}
    for row in rows_of("h200_whole_programs.csv"):
        found.setdefault((row["program"], row["step"]), {})[row["variant"]] = row

    def cell(row: dict[str, str] | None, name: str = "") -> str:
        return "-" if row is None else f"{name}{float(row['after_us']):.0f} ({float(row['ratio']):.2f})"

    lines = []
    for (program, step), variants in sorted(found.items(), key=lambda item: list(titles).index(item[0][0])):
        special = next((name for name in variants if name != "group"), None)
        rows = [variants["group"]] + ([variants[special]] if special else [])
        compiled = [float(rows[0]["before_compile_s"]), *(float(row["after_compile_s"]) for row in rows)]
        lines.append((
            f"{titles[program]}, {step}", f"{float(rows[0]['before_us']):.0f}", cell(variants["group"]),
            cell(variants[special], f"`{special}` ") if special else "-", ", ".join(f"{s:.1f}" for s in compiled),
        ))  # fmt: skip
    return table(("program", "before", "`group`", "by the function for it", "compilation (s)"), lines)


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
    "headline": ([ROOT / "README.md", DOCS / "index.md"], headline),
    "overview": ([DOCS / "speed.md"], overview),
    "traced": ([DOCS / "speed.md"], traced),
    "loop": ([DOCS / "speed.md"], loop),
    "muon": ([DOCS / "guides" / "optax.md"], muon),
    "muon_errors": ([DOCS / "guides" / "optax.md"], muon_errors),
    "muon_iterations": ([DOCS / "guides" / "optax.md"], muon_iterations),
    "devices": ([DOCS / "guides" / "many_devices.md"], devices),
    "experts": ([DOCS / "guides" / "many_devices.md"], experts),
    "irreps": ([DOCS / "guides" / "irreps.md"], irreps),
    "sparse": ([DOCS / "guides" / "block_sparse.md"], sparse),
    "packed": ([DOCS / "guides" / "views.md"], packed),
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


def draw(file: Path) -> None:
    """The front page's picture: one call in place of a loop, and speedups by use."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style = {**STYLE, "font.size": 10, "axes.titlesize": 10}
    short = {
        use.use.split(",")[0] if use.use.startswith(("64", "32", "1000", "Goog", "equi", "block")) else use.use: use
        for use in USES
    }
    with plt.rc_context(style):
        figure, axis = plt.subplots(figsize=(9, 4.2))
        names, ratios, times = [], [], []
        for name, use in short.items():
            file_name, pair = use.pairs[0]
            ours, theirs = pairs_of(file_name)[pair]
            names.append(f"{name}\nvs {use.against.replace('`', '')}")
            ratios.append(theirs / ours)
            times.append(f"{theirs / ours:.2g}x   {duration(theirs)} to {duration(ours)}")
        places = range(len(names))
        axis.barh(
            places,
            [ratio - 1 for ratio in ratios],
            0.62,
            left=1,
            color=[COLOURS["ours" if ratio > 1 else "peer"] for ratio in ratios],
        )
        for place, ratio, time in zip(places, ratios, times, strict=True):
            axis.text(max(ratio, 1) * 1.04, place, time, va="center", fontsize=9, color=TEXT)
        axis.axvline(1, color=TEXT, linewidth=1)
        axis.set_xscale("log")
        axis.set_xlim(0.6, max(ratios) * 5)
        axis.set_xticks([1, 2, 5, 10, 20], ["1x", "2x", "5x", "10x", "20x"])
        axis.minorticks_off()
        axis.set_yticks(places, names, fontsize=8)
        axis.invert_yaxis()
        axis.set_xlabel("times as fast as the alternative (H100; experts in tunix: H200)")
        figure.set_size_inches(9, 0.46 * len(names) + 0.8)
        figure.savefig(file, transparent=True, metadata={"Date": None, "Creator": None})
        plt.close(figure)


def main() -> None:
    made: dict[Path, Any] = pages()
    for file, text in made.items():
        file.write_text(text)
        print(file.relative_to(ROOT))
    draw(PICTURE)
    print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
