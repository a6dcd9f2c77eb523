"""The guides on Muon and on many devices: optimizer steps, their accuracy, and both on several devices."""

from newest_files import NEVER, rows_of, table

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


ITERATED = {**MODELS, "llama_layer": "a Llama layer, 7 matrices"}


def muon_iterations() -> list[str]:
    ways = ["vbgemm", "vbgemm float16", "vbgemm float16_gram"]
    of = {(row["model"], row["optimizer"]): float(row["loop_us"]) for row in rows_of("h200_muon_iterations.csv")}
    lines = []
    for model in dict.fromkeys(model for model, _ in of):
        theirs = of[model, "optax"]
        ours = [f"{of[model, way]:.0f} us ({theirs / of[model, way]:.3g}x)" for way in ways]
        lines.append((ITERATED[model], f"{theirs:.0f} us", *ours))
    return table(("model", "optax", "default", "float16", "float16, Gram"), lines)


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


def muon_losses() -> list[str]:
    losses: dict[str, list[float]] = {}
    for row in rows_of("cpu_muon_losses.csv"):
        losses.setdefault(row["optimizer"], []).append(float(row["loss"]))
    seeds = [f"seed {i}" for i in range(len(losses["optax"]))]
    return table(
        ("iterates", *seeds, "mean"),
        [
            (name, *(f"{loss:.4f}" for loss in found), f"{sum(found) / len(found):.4f}")
            for name, found in losses.items()
        ],
    )


def devices() -> list[str]:
    lines = []
    for title, name, model, optimizer in (
        ("GPT-2 small, 48 matrices, H100", "h100_muon_devices.csv", "gpt2_small", "vbgemm"),
        ("GPT-2 small, 48 matrices, H200", "h200_muon_devices.csv", "gpt2_small", "vbgemm"),
        ("the same, float16 and Gram", "h200_muon_devices.csv", "gpt2_small", "vbgemm float16_gram"),
        ("ResNet-50, 53 matrices, H200", "h200_muon_devices.csv", "resnet50", "vbgemm"),
    ):
        of = {
            (row["optimizer"], row["devices"], row["placement"]): 1e-3 * float(row["loop_us"])
            for row in rows_of(name)
            if row["model"] == model
        }

        cells = []
        for way in [("1", "replicated"), *(("2", way) for way in ("replicated", "rows"))]:
            ours, theirs = of.get((optimizer, *way)), of.get(("optax", *way))
            cells.append(NEVER if ours is None or theirs is None else f"{ours:.3g} (optax {theirs:.3g})")
        lines.append((title, *cells))
    return table(("model", "one device", "two, replicated", "two, by rows"), lines)
