import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest

import jax_vbgemm as vb
from jax_vbgemm import _core
from jax_vbgemm._src import planner
from jax_vbgemm._src.native.arithmetic import ARITHMETICS
from jax_vbgemm._src.native.compiled_tiles import COMPILED_TILES
from jax_vbgemm._src.planner import Catalogue, TileShape, catalogue_for, device_spec, kind_of
from jax_vbgemm._src.planner.model.tile_time import step_depth
from jax_vbgemm._src.planner.tables import catalogue as tables
from jax_vbgemm._src.planner.tables.catalogue import ELEMENT_BYTES, PLAIN_KIND

from .cases import make

ROWS = list(csv.DictReader(Path(tables.__file__).with_name("resources.csv").open()))
AMD_ROWS = list(csv.DictReader(Path(tables.__file__).with_name("resources_amd.csv").open()))


KINDS = tuple(ARITHMETICS)
OF_A_BYTE = tuple(kind for kind in KINDS if ARITHMETICS[kind].bytes == 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_has_the_tiles_built_for_the_kind_and_those_of_its_dtype(kind):
    catalogue = catalogue_for(kind, device_spec("h100"))
    rows = [row for row in COMPILED_TILES if (kind if row.tensor else PLAIN_KIND[kind]) in row.k_steps["cuda"]]
    assert [tile.key for tile in catalogue] == [(row.name, row.threads) for row in rows]
    assert catalogue.hash == _core.catalogue_hash()
    for tile in catalogue:
        row = COMPILED_TILES[tile.index]
        assert (tile.name, tile.m, tile.n, tile.k, tile.threads) == row[:5]
        assert (tile.kernel, tile.tensor) == (row.kernel, row.tensor)
        assert (tile.stores_mirrored, tile.is_far_longer) == (row.stores_mirrored, row.is_far_longer)


@pytest.mark.parametrize(("platform", "absent"), [("cuda", {"float32"}), ("rocm", {"tf32x3", *OF_A_BYTE})])
def test_the_arithmetics_of_a_platforms_tensor_tiles(platform, absent):
    listed = {kind for row in COMPILED_TILES if row.tensor for kind in row.kinds}
    assert listed - {kind for row in COMPILED_TILES if row.tensor for kind in row.k_steps[platform]} == absent


def test_the_cost_models_step_is_that_of_the_kernel():
    for row in COMPILED_TILES:
        for kind, step in row.k_steps["cuda"].items():
            # A tile of whole rows holds as many steps of B as suit the kernel; a step of the model is a part of them.
            if row.partition != "rows":
                assert step_depth(np.asarray(row.k), ARITHMETICS[kind].bytes) == step


@pytest.mark.parametrize("device", ["v100", "mi100"])
def test_tensor_tiles_are_for_devices_with_such_cores(device):
    assert not any(tile.tensor for kind in KINDS for tile in catalogue_for(kind, device_spec(device)))
    assert kind_of("float32", "default", device_spec(device)) == "float32"


@pytest.mark.parametrize("kind", OF_A_BYTE)
def test_types_of_a_byte_have_tensor_tiles_on_nvidia_gpus(kind):
    def tensor_tiles(device):
        return [tile.name for tile in catalogue_for(kind, device_spec(device)) if tile.tensor]

    assert not tensor_tiles("mi300x")
    assert not tensor_tiles("v100")
    assert tensor_tiles("l40s") == ["mma-32x32", "mma-64x64"]  # too little shared memory for the largest
    for device in ("h100", "a100", "b200"):
        assert tensor_tiles(device) == ["mma-32x32", "mma-64x64", "mma-128x128"]
        assert catalogue_for(kind, device_spec(device)).on_tensor_cores


def test_the_precision_of_float32_chooses_its_kind():
    h100 = device_spec("h100")
    assert [kind_of("float32", p, h100) for p in ("default", "high", "highest")] == ["tf32", "tf32x3", "float32"]
    assert kind_of("float64", "default", h100) == "float64"
    assert kind_of("float32", "default", device_spec("cpu")) == "float32"


def test_a_gpu_has_only_tiles_whose_dtypes_name_it():
    names = {tile.name for tile in catalogue_for("complex128", device_spec("h100"))}
    assert "small" in names
    assert "huge" not in names


def test_a_dtype_without_kernels_is_refused_by_name():
    with pytest.raises(ValueError, match=r"dtype: unknown name 'int32'"):
        make(vb.LoadBalanced(), [(1, 1, 1)], dtype="int32")


@pytest.mark.parametrize("dtype", ELEMENT_BYTES)
def test_the_cpu_walks_every_ordinary_tile_in_every_dtype(dtype):
    catalogue = catalogue_for(dtype, device_spec("cpu"))
    kernels = tables
    others = (*kernels.WHOLE_ROWS, kernels.SHARED_DEPTH, *kernels.DOT_PRODUCTS)
    ordinary = [row for row in COMPILED_TILES if not row.tensor and row.kernel not in others]
    assert [tile.key for tile in catalogue] == [(row.name, row.threads) for row in ordinary]
    assert {(tile.kernel, tile.registers, tile.shared_bytes) for tile in catalogue} == {("cpu", 0, 0)}


def test_registers_and_shared_memory_are_those_of_the_kernel_that_holds_the_tile():
    spec = device_spec("h100")
    for tile in catalogue_for("float64", spec):
        (row,) = (r for r in ROWS if (r["arch"], r["kernel"], r["dtype"]) == (spec.resources, tile.kernel, "float64"))
        assert (tile.registers, tile.shared_bytes) == (int(row["registers"]), int(row["shared_bytes"]))


def test_the_resource_files_have_every_kernel_that_a_device_may_launch():
    rows = [(row["arch"], row["kernel"], row["dtype"]) for row in ROWS + AMD_ROWS]
    assert len(set(rows)) == len(rows)
    for spec in planner.DEVICES.values():
        if spec.device_type == "gpu":
            for kind in KINDS:
                for tile in catalogue_for(kind, spec):
                    assert (spec.resources, tile.kernel, kind if tile.tensor else PLAIN_KIND[kind]) in rows


def test_a_tile_that_needs_more_shared_memory_than_a_block_may_have_is_left_out():
    spec = device_spec("h100")
    most = max(tile.shared_bytes for tile in catalogue_for("float64", spec))
    small = catalogue_for("float64", dataclasses.replace(spec, shared_block_bytes=most - 1))
    assert {tile.key for tile in catalogue_for("float64", spec) if tile.shared_bytes < most} == {t.key for t in small}


def test_an_unknown_dtype_is_an_error():
    with pytest.raises(ValueError, match=r"unknown name 'uint8'; known are float32, float64.*, float8_e4m3fn, .*int8"):
        catalogue_for("uint8", device_spec("h100"))


def tile(index, name, edge, threads=128):
    return TileShape(index, name, edge, edge, 16, threads, "t128_light", 32, 1024)


def test_a_missing_tile_is_replaced_by_the_next_smaller_of_the_order():
    catalogue = Catalogue("float32", (tile(3, "b", 32), tile(1, "d", 128), tile(2, "a", 16, 256)), 0)
    order = [("a", 128), ("b", 128), ("c", 128), ("d", 128), ("e", 128)]
    tiles, replaced = catalogue.resolve(order)
    assert [t.name for t in tiles] == ["b", "b", "b", "d", "d"]  # nothing is smaller than a: the next larger
    assert [(r.asked, r.taken) for r in replaced] == [
        (("a", 128), ("b", 128)),
        (("c", 128), ("b", 128)),
        (("e", 128), ("d", 128)),
    ]


def test_the_plan_records_replaced_tiles():
    # huge/128 is not built for f64: its accumulators need more registers than a thread has.
    plan = make(planner.Coordinated(tlp_threshold=0), [(256, 256, 8)] * 9, dtype="float64")
    assert plan.choices == (("wide", 128),) * 9
    assert plan.replaced == ((("huge", 128), ("wide", 128)),)
    assert "huge/128 is not built: wide/128" in str(plan)
    assert make(planner.Coordinated(tlp_threshold=0), [(256, 256, 8)] * 9).choices == (("huge", 128),) * 9


def test_finding_a_tile():
    catalogue = catalogue_for("float32", device_spec("h100"))
    assert catalogue.find("large").threads == 256
    assert catalogue.find("large", 128).threads == 128
    with pytest.raises(ValueError, match=r"there is no tile 'larg' for float32; there are small/128, small/256"):
        catalogue.find("larg")
    with pytest.raises(ValueError, match=r"there is no tile \('large', 64\) for float32"):
        catalogue.find("large", 64)


def test_a_dtype_without_figures_borrows_from_its_size_or_the_next_larger(monkeypatch):
    table = {("sm_90a", "k", "float32"): (40, 1, 0), ("sm_90a", "k", "float64"): (80, 2, 0)}
    monkeypatch.setattr("jax_vbgemm._src.planner.tables.catalogue._resource_table", lambda: table)
    resources = tables._kernel_resources
    h100 = device_spec("h100")
    found = {dtype: resources(h100, "k", dtype)[0] for dtype in ELEMENT_BYTES}
    assert found == {dtype: 80 if size >= 8 else 40 for dtype, size in ELEMENT_BYTES.items()}
    with pytest.raises(ValueError, match=r"the resource tables have no row for kernel 'other' on 'sm_90a' \(h100\)"):
        resources(h100, "other", "float32")
