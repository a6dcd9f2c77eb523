"""The text of print(plan): the decision and its reasons, in at most forty lines."""

import textwrap
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from jax_vbgemm._src.planner.tables.catalogue import TileKey

if TYPE_CHECKING:
    from jax_vbgemm._src.planner.plan.plan import Plan

_MAX_GROUPS = 12  # lines for groups of equal problems
_MAX_REMARKS = 6  # replaced tiles and notes
_WIDTH = 96  # of their lines


def describe(plan: "Plan") -> str:
    """A plain-text table of `plan`: totals, a line for each tile used, a line for each group of equal problems,
    notes."""
    device = plan.device
    lines = [
        f"Plan by {plan.planner!r} for {device.name} ({device.units} units), {plan.kind}: "
        f"{len(plan.problems)} problems, {plan.num_tiles} tiles, {plan.num_blocks} blocks",
        f"predicted {plan.predicted_seconds * 1e6:.1f} us, {plan.waves:.2f} waves, "
        f"padding waste {plan.padding_waste:.2f}x, balance {plan.balance:.2f}, TLP {plan.tlp}",
        *_tile_lines(plan),
        *_problem_lines(plan),
    ]
    remarks = [f"{_name(asked)} is not built: {_name(taken)}" for asked, taken in plan.replaced]
    remarks += plan.notes
    for remark in remarks[:_MAX_REMARKS]:
        lines += textwrap.wrap(f"note: {remark}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


def _tile_lines(plan: "Plan") -> list[str]:
    lines = [f"{'tile':<18}{'shape':>9}  {'kernel':<12}{'tiles':>9}{'occupancy':>11}  limit"]
    count = np.bincount(plan.runs.tile_id, plan.runs.count, minlength=1)
    for tile in plan.tiles_used:
        occupancy = plan.tile_occupancies[tile.key]
        limit = "" if plan.device.device_type == "cpu" else f"{occupancy.limit} ({occupancy.waves} waves a unit)"
        lines.append(
            f"{_name(tile.key):<18}{f'{tile.m}x{tile.n}':>9}  {tile.kernel:<12}{int(count[tile.index]):>9}"
            f"{occupancy.fraction:>11.0%}  {limit}"
        )
    return lines


def _problem_lines(plan: "Plan") -> list[str]:
    groups = Counter(
        (problem.m, problem.n, problem.k, problem.batch, choice)
        for problem, choice in zip(plan.problems, plan.choices, strict=True)
    )
    lines = [f"{'problems':>8}{'m':>10}{'n':>10}{'k':>10}{'batch':>10}  tile"]
    for (m, n, k, batch, choice), count in list(groups.items())[:_MAX_GROUPS]:
        lines.append(
            f"{count:>8}{m:>10}{n:>10}{k:>10}{batch:>10}  {'mixed or none' if choice is None else _name(choice)}"
        )
    if len(groups) > _MAX_GROUPS:
        rest = sum(list(groups.values())[_MAX_GROUPS:])
        lines.append(f"{rest:>8} more, of {len(groups) - _MAX_GROUPS} other sizes")
    return lines


def _name(key: TileKey) -> str:
    return f"{key[0]}/{key[1]}"
