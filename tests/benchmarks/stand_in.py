"""A stand-in for gpu_driver: reads case files by the layout at the top of gpu_driver.cu, and writes made-up timings."""

import io
from dataclasses import fields

import numpy as np

from candidates import Candidate, list_of
from cases import HEADING
from jax_vbgemm._src.matmul.descriptors import KINDS
from jax_vbgemm._src.native.records import PROBLEM, READY_TILE, RUN, SPLIT_TILE
from jax_vbgemm._src.planner import device_spec
from jax_vbgemm._src.problem import problems_of
from workloads import Row, read_csv

H100 = device_spec("h100")
PROBLEMS = problems_of([(100, 70, 64), (33, 47, 129), (64, 64, 64)])


def read_cases(file):
    """(peer, workload, kind, problems, tiles, blocks) of each case, by the layout at the top of gpu_driver.cu."""
    data, found = io.BytesIO(file.read_bytes()), []
    assert data.read(16) == HEADING
    while names := data.read(128):
        kind, problems, runs, tiles, blocks, launches, has_block_first, splits = np.frombuffer(data.read(32), np.int32)
        launch = np.frombuffer(data.read(12 * launches), np.int32).reshape(-1, 3)
        assert launch[:, 2].sum() == blocks
        data.seek(-data.tell() % 8, io.SEEK_CUR)
        data.seek(0 if runs else READY_TILE.itemsize * tiles, io.SEEK_CUR)
        rows = np.frombuffer(data.read(PROBLEM.itemsize * problems), PROBLEM)
        data.seek(RUN.itemsize * runs, io.SEEK_CUR)
        data.seek(SPLIT_TILE.itemsize * splits, io.SEEK_CUR)
        data.seek(4 * (blocks + 1) if has_block_first else 0, io.SEEK_CUR)
        data.seek(-data.tell() % 8, io.SEEK_CUR)
        peer, workload = (names[i : i + 64].rstrip(b"\0").decode() for i in (0, 64))
        found.append((peer, workload, KINDS[kind], rows, int(tiles), int(blocks)))
    return found


def driver(file, output, seconds=None, nbad=0):
    """Writes the output of gpu_driver for cases that take the predicted time, or the time that `seconds` gives."""
    predicted = {(c.workload, c.plan): c.predicted_us for c in read_csv(Candidate, list_of(file))}
    lines = [",".join(f.name for f in fields(Row))]
    for peer, workload, kind, rows, _, _ in read_cases(file):
        us = predicted[workload, peer] if seconds is None else seconds(peer, workload)
        precision = {"float32": "fp32", "float64": "fp64", "tf32": "tf32", "bfloat16": "bf16"}[kind]
        gflop = 2e-9 * float((rows["m"].astype(float) * rows["n"] * rows["k"]).sum())
        lines.append(f"{peer},any,{workload},{precision},{len(rows)},{gflop},cold,{us},{us},1e-7,1e-7,{nbad},blocks=1")
    output.write_text("\n".join(lines) + "\n")  # without quotes, as gpu_driver does
    return output
