"""The plans of every registered planner for a few batches, one line for each plan. `python -m tests.planner.golden`
writes golden.csv, with which test_golden.py compares the planners' present plans.
"""

import csv
import hashlib
import io
from pathlib import Path

import numpy as np

import jax_vbgemm as vb
from jax_vbgemm._src.planner import PLANNERS, catalogue_for, device_spec
from jax_vbgemm._src.problem import problems_of

FILE = Path(__file__).with_name("golden.csv")
COLUMNS = ("planner", "device", "kind", "batch", "tiles", "blocks", "shapes", "digest")
DEVICES = {"h100": ("float32", "tf32", "float64"), "mi210": ("float32",), "cpu": ("float32",)}
BATCHES = {
    "equal": [(512, 512, 512)] * 16,
    "ragged": [(m, n, k) for m, n, k in zip(range(17, 417, 25), range(400, 80, -20), range(8, 1608, 100), strict=True)],
    "tall": [(100_000, 16, 8), (8, 8, 50_000), (10_240, 8, 10_240), (64, 64, 64)],
    "empty": [(0, 5, 5), (5, 5, 0), (3, 3, 3)],
}


def digest(plan: vb.Plan) -> str:
    """A hash of the data that reaches a kernel, with tiles by name, as new tiles change their numbers."""
    runs, block_first, _ = plan.launch_form()
    names = np.array(["/".join(map(str, plan.catalogue.by_index[index].key)) for index in runs.tile_id.tolist()], "S32")
    columns = [names, *(getattr(runs, name) for name in runs.__dataclass_fields__ if name != "tile_id")]
    if block_first is not None:
        columns.append(block_first)
    return hashlib.sha256(b"|".join(np.asarray(column).tobytes() for column in columns)).hexdigest()[:16]


def row(planner: str, device: str, kind: str, batch: str) -> tuple[str, ...]:
    spec = device_spec(device)
    try:
        plan = PLANNERS[planner](problems_of(BATCHES[batch]), spec, catalogue_for(kind, spec))
    except ValueError as error:
        return planner, device, kind, batch, "", "", "", f"refused: {error}"
    shapes = " ".join(sorted(f"{tile.name}/{tile.threads}" for tile in plan.tiles_used))
    return planner, device, kind, batch, str(plan.num_tiles), str(plan.num_blocks), shapes, digest(plan)


def cases() -> list[tuple[str, str, str, str]]:
    return [
        (planner, device, kind, batch)
        for planner in PLANNERS
        for device, kinds in DEVICES.items()
        for kind in kinds
        for batch in BATCHES
    ]


def read() -> dict[tuple[str, ...], tuple[str, ...]]:
    with FILE.open(newline="") as file:
        return {tuple(line[:4]): tuple(line) for line in list(csv.reader(file))[1:]}


if __name__ == "__main__":
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(row(*case) for case in cases())
    FILE.write_text(out.getvalue())
