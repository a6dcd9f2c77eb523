"""The front page and the page on speed: speedups by use and device, where they are from, and their picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from newest_files import NEVER, duration, rows_of, source, table
from plots import COLOURS, STYLE, TEXT

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
    Use(
        "experts of Gemma 4 in tunix, loss",
        "`jax.lax.ragged_dot`",
        [("h200_whole_programs.csv", "gemma4 1024 tokens forward")],
    ),
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


def device_of(name: str) -> str:
    """The column of the overview that a file's figures are in."""
    return next(column for column, starts in DEVICES.items() if source(name)["device"].startswith(starts))


def headline() -> list[str]:
    """The rows of the overview that the front page shows, each on the first device of its figures."""
    lines = []
    for use in USES:
        if use.use.split(",")[0] in HEADLINES:
            name, pair = use.pairs[0]
            ours, theirs = pairs_of(name)[pair]
            times = f"**{theirs / ours:.2g}x** ({duration(theirs)} to {duration(ours)})"
            lines.append((use.use, use.against, times, device_of(name)))
    return table(("inside one jitted program", "compared with", "times as fast", "device"), lines)


def traced() -> list[str]:
    """Where each figure of the overview is from."""
    names = sorted({name for use in USES for name, _ in use.pairs})
    lines = []
    for name in names:
        about = source(name)
        lines.append((f"`{name}`", about["device"], about["date"], about["about"].split("; superseded")[0]))
    return table(("file of `benchmarks/results`", "device", "date", "what"), lines)


def draw(file: Path) -> None:
    """The front page's picture: one call in place of a loop, and speedups by use."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    # Small enough to stand beside text, and to be read on a phone: each use has a line of its own above its bar.
    style = {**STYLE, "font.size": 9}
    with plt.rc_context(style):
        figure, axis = plt.subplots(figsize=(5.2, 0.42 * len(USES) + 0.55))
        for place, use in enumerate(USES):
            file_name, pair = use.pairs[0]
            ours, theirs = pairs_of(file_name)[pair]
            ratio = theirs / ours
            name = use.use if use.use.startswith(("MoE", "Muon", "experts")) else use.use.split(",")[0]
            colour = COLOURS["ours" if ratio > 1 else "peer"]
            axis.barh(place, ratio - 1, 0.45, left=1, color=colour)
            device = device_of(file_name)
            time = f"{ratio:.2g}x   {duration(theirs)} to {duration(ours)}" + f" ({device})" * (device != "H100")
            axis.text(max(ratio, 1) * 1.04, place, time, va="center", color=TEXT)
            against = f"{name} vs {use.against.replace('`', '')}"
            axis.text(1.04, place - 0.45, against, va="center", color=TEXT)
        axis.axvline(1, color=TEXT, linewidth=1)
        axis.set_xscale("log")
        axis.set_xlim(0.75, 200)
        axis.set_xticks([1, 2, 5, 10, 20], ["1x", "2x", "5x", "10x", "20x"])
        axis.minorticks_off()
        axis.set_yticks([])
        axis.spines.left.set_visible(False)
        axis.set_ylim(len(USES) - 0.6, -0.8)
        axis.set_xlabel("times as fast as the alternative (on an H100, or the device in brackets)")
        figure.savefig(file, transparent=True, metadata={"Date": None, "Creator": None})
        plt.close(figure)
