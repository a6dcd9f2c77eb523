"""Tables of the newest figures: mixtures of experts."""

from newest_files import NEVER, rows_of, table


def experts() -> list[str]:
    """OLMoE's layer with 16,384 tokens in all, by every way of the file without chunks."""
    titles = {
        "one_device": "one device", "expert_mlp": "{} devices, `expert_mlp(mesh_axis=)`",
        "expert_parallel": "{} devices, `expert_parallel`",
    }  # fmt: skip
    of: dict[str, dict[str, str]] = {}
    for row in rows_of("h200_expert_parallel.csv"):
        if (row["model"], row["tokens"], row.get("skew", "uniform")) != ("olmoe", "16384", "uniform"):
            continue
        if row.get("chunks") not in (None, "", "1"):  # never faster: the guide says so
            continue
        title = titles[row["layer"]].format({"2": "two", "4": "four", "8": "eight"}.get(row["devices"]))
        if row.get("exchange"):
            title += f", {row['exchange']}"
        of.setdefault(title, {})[row["direction"]] = NEVER if row.get("note") else f"{1e-3 * float(row['us']):.1f}"
    lines = [
        (title, *(times.get(direction, NEVER) for direction in ("forward", "forward_backward")))
        for title, times in of.items()
    ]
    return table(("", "forward (ms)", "forward and backward (ms)"), lines)


PEERS = {
    "granite": "granite (1536, 512, 40, 8)", "olmoe": "OLMoE (2048, 1024, 64, 8)",
    "qwen3_30b": "Qwen3-30B-A3B (2048, 768, 128, 8)", "gpt_oss": "gpt-oss (2880, 2880, 128, 4)",
}  # fmt: skip


def moe_peers() -> list[str]:
    of = {
        (row["model"], row["tokens"], row["direction"], row["peer"]): float(row["us"])
        for row in rows_of("h200_moe_peers.csv")
    }
    lines = []
    for case in dict.fromkeys(key[:3] for key in of):
        model, tokens, direction = case
        ours, dense = of[*case, "vbgemm"], of[*case, "dense"]
        against = ours / max(dense, of[*case, "limit"])
        others = [of.get((*case, peer)) for peer in ("torch_grouped_mm", "lax_ragged_dot")]
        cells = [NEVER if us is None else f"{us:.0f} ({us / ours:.2g}x)" for us in others]
        direction = direction.replace("_", " and ")
        lines.append((PEERS[model], tokens, direction, f"{ours:.0f}", f"{dense:.0f}", f"{against:.2f}", *cells))
    lines.sort(key=lambda line: list(PEERS.values()).index(line[0]))
    head = ("layer", "tokens", "", "ours (us)", "dense (us)", "ours / dense", "torch `_grouped_mm`", "`lax.ragged_dot`")
    return table(head, lines)


def eight_bits() -> list[str]:
    titles = {"olmoe": "OLMoE", "qwen3_30b_a3b": "Qwen3-30B-A3B"}
    of = {
        (row["model"], row["tokens"], row["direction"], row["weights"]): float(row["us"])
        for row in rows_of("h200_moe_kernels.csv")
    }
    lines = []
    for model, tokens in dict.fromkeys(key[:2] for key in of):
        cells = []
        for direction in ("forward", "forward and backward"):
            wide, narrow = (of[model, tokens, direction, weights] for weights in ("side by side", "8 bits"))
            cells.append(f"{wide:.0f}, {narrow:.0f} ({wide / narrow:.2f}x)")
        lines.append((f"{titles[model]}, {int(tokens):,} tokens", *cells))
    return table(("layer", "forward", "with backward"), lines)


def mixed() -> list[str]:
    """A line for each layer and number of rows: gate and up, down, and both."""
    titles = {"qwen3_30b": "Qwen3-30B-A3B", "gpt_oss_20b": "gpt-oss-20b"}
    of: dict[str, dict[str, str]] = {}
    for row in rows_of("h200_ragged_mixed.csv"):
        up, down = float(row["up_us"]), float(row["down_us"])
        speedup = "" if row["weights"] == "bfloat16" else f" ({float(row['speedup']):.2f}x)"
        case = f"{titles[row['layer']]}, {row['rows']} rows"
        of.setdefault(case, {})[row["weights"]] = f"{up:.0f} + {down:.0f} = {up + down:.0f}{speedup}"
    weights = list(next(iter(of.values())))
    return table(("us", *weights), [(case, *(cells[name] for name in weights)) for case, cells in of.items()])
