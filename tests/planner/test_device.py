"""The device table: its entries, and the entry with which a live device is planned."""

import csv
import dataclasses
import tomllib
from types import SimpleNamespace

import pytest

import jax_vbgemm as vb
from jax_vbgemm._src.native import backends
from jax_vbgemm._src.planner import DEVICES, Reported, catalogue_for, device_spec, kind_of, match_device, plan_problems
from jax_vbgemm._src.planner.model.calibration import COLUMNS, priors_of
from jax_vbgemm._src.planner.model.occupancy import waves_by_registers
from jax_vbgemm._src.planner.tables import coefficients, device_table
from jax_vbgemm._src.planner.tables.device_table import FOLDER, architectures, entries, spec_of


def test_the_table_has_the_devices_we_promise():
    ours = {"v100", "a100", "a800", "h100", "h200", "mi100", "mi210", "mi250x", "mi300x", "cpu"}
    newer = {"gh200", "b200", "gb200", "a10", "l40s", "rtx4090", "mi300a"}
    papers = {"k40c", "m40", "p100", "m60", "titanx", "gtx1080ti", "titanxp", "mi50"}
    assert ours | newer | papers == set(DEVICES)


@pytest.mark.parametrize("name", DEVICES)
def test_entries_are_consistent(name):
    spec = device_spec(name)
    assert spec.name == name
    assert hash(spec) == hash(dataclasses.replace(spec))
    assert spec.max_waves * spec.wave_size == spec.max_threads
    assert spec.peak_rate("complex64") == spec.peak_rate("bfloat16") == spec.peak_rate("float32")
    assert spec.peak_rate("complex128") == spec.peak_rate("float64") <= spec.peak_rate("float32")
    if spec.device_type == "gpu":
        assert spec.registers % (spec.simds * spec.wave_size) == 0
    if spec.device_type == "gpu" and not spec.calibration:  # else found by trial
        # 40% of the threads a device can hold, as the paper's 65536 are of a V100's.
        assert spec.tlp_threshold == round(65536 / (80 * 2048) * spec.units * spec.max_threads)
        # Wang 2022: SIMDs of a unit over waves of a block of 128 threads.
        assert spec.split_factor == max(spec.simds // spec.waves_of(128), 1)
        # Half of its threads; three quarters where all classes can have half of them active.
        part = 3 / 4 if name in ("b200", "gb200") else 1 / 2
        assert spec.load_balanced_threshold == spec.units * spec.max_threads * part


@pytest.mark.parametrize("name", [name for name, spec in DEVICES.items() if spec.device_type == "gpu"])
def test_no_prediction_is_faster_than_the_device(name):
    """As one would be with costs that were measured on another device, or rates that are wrong by a factor."""
    spec = device_spec(name)
    for dtype, precision in (
        ("bfloat16", "default"),
        ("float32", "default"),
        ("float32", "highest"),
        ("float64", "default"),
    ):
        kind = kind_of(dtype, precision, spec)
        rate = spec.tensor_rate(kind) if spec.has_tensor(kind) else spec.peak_rate(kind)
        seconds = plan_problems([(4096, 4096, 4096)] * 4, kind, spec, tuned=False).predicted_seconds
        assert 4 * 2 * 4096**3 / seconds <= 1.01 * rate


def test_what_was_measured_with_other_units_or_rates_is_not_inherited(monkeypatch, tmp_path):
    (tmp_path / "h100").symlink_to(FOLDER / "h100")
    (tmp_path / "h20").mkdir()
    toml = tmp_path / "h20" / "device.toml"
    monkeypatch.setattr(device_table, "FOLDER", tmp_path)
    toml.write_text('base = "h100"\n[hardware]\nbandwidth = 4.0e12\n[boards]\n')
    inherits = device_table._entry("h20").spec
    assert (inherits.calibration, inherits.rules) == ("h100", device_spec("h100").rules)
    toml.write_text('base = "h100"\n[hardware]\nunits = 78\n[boards]\n')
    with pytest.raises(ValueError, match=r"device 'h20': units differ from those of its base 'h100': .*calibration"):
        device_table._entry("h20")


def test_rows_of_a_device_replace_those_of_its_base(monkeypatch, tmp_path):
    (tmp_path / "h100").symlink_to(FOLDER / "h100")
    (tmp_path / "h20").mkdir()
    (tmp_path / "h20" / "device.toml").write_text('base = "h100"\n[hardware]\n[boards]\n')
    monkeypatch.setattr(device_table, "FOLDER", tmp_path)
    monkeypatch.setattr(coefficients, "calibration_table", coefficients.calibration_table.__wrapped__)
    assert coefficients.calibration_table("h20") == coefficients.calibration_table("h100")
    own = [",".join(COLUMNS), "tf32,mma-64x64,128,1,2,3,4,5,6,7,8,,0.1,9,2026-11-29,abc"]
    (tmp_path / "h20" / "calibration.csv").write_text("\n".join(own))
    table, base = coefficients.calibration_table("h20"), coefficients.calibration_table("h100")
    assert device_table._entry("h20").spec.calibration == "h20"
    key = "tf32", "mma-64x64", 128
    assert table[key] == tuple(1e-9 * n for n in range(1, 9)) != base[key]
    assert {k: v for k, v in table.items() if k != key} == {k: v for k, v in base.items() if k != key}


def test_figures_of_the_documents():
    assert (device_spec("v100").tlp_threshold, device_spec("v100").theta) == (65536, 256)
    h100, mi210 = device_spec("h100"), device_spec("mi210")
    assert (h100.units, h100.wave_size, h100.max_waves, h100.max_blocks) == (132, 32, 64, 32)
    assert (h100.registers, h100.shared_bytes, h100.shared_reserved) == (65536, 233472, 1024)
    assert (mi210.units, mi210.wave_size, mi210.max_waves, mi210.max_blocks) == (104, 64, 32, 16)
    k40c, m40, p100, mi50 = map(device_spec, ("k40c", "m40", "p100", "mi50"))
    # Rivera et al., section 4.1: GFLOP/s of float64 and GB/s.
    for spec, rate, bandwidth in ((k40c, 1430e9, 288e9), (m40, 213e9, 288e9), (p100, 4600e9, 720e9)):
        assert spec.peak_rate("float64") == pytest.approx(rate, rel=0.025)
        assert spec.bandwidth == pytest.approx(bandwidth, rel=0.02)
    assert (mi50.units, mi50.max_waves, mi50.split_factor) == (60, 40, 2)
    assert (mi210.registers // mi210.simds // mi210.wave_size, mi210.shared_bytes) == (512, 65536)


def test_names_and_specs():
    assert device_spec("H100") is device_spec("h100")
    assert device_spec(device_spec("cpu")) is device_spec("cpu")
    with pytest.raises(ValueError, match=r"unknown name 'h1000'; known are a10, a100, .*, v100"):
        device_spec("h1000")
    with pytest.raises(TypeError, match="expected a DeviceSpec or a name, but it is 3"):
        device_spec(3)


def cuda(kind, capability=None, units=None, **others):
    return Reported(kind, "cuda", units, capability, **others)


def rocm(kind, capability=None, units=None):
    return Reported(kind, "rocm", units, capability)


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        (cuda("NVIDIA H100 80GB HBM3", "9.0"), "h100"),
        (cuda("NVIDIA H100 80GB HBM3"), "h100"),
        (cuda("NVIDIA H200", "9.0"), "h200"),
        (cuda("NVIDIA GH200 480GB", "9.0"), "gh200"),
        (cuda("NVIDIA B200", "10.0"), "b200"),
        (cuda("NVIDIA GB200", "10.0"), "gb200"),
        (cuda("NVIDIA GeForce RTX 4090", "8.9"), "rtx4090"),
        (cuda("NVIDIA L40S", "8.9"), "l40s"),
        (cuda("NVIDIA A10", "8.6"), "a10"),
        (cuda("NVIDIA A100-SXM4-80GB", "8.0"), "a100"),
        (cuda("NVIDIA A800-SXM4-80GB", "8.0"), "a800"),
        (cuda("Tesla V100-SXM2-16GB", "7.0"), "v100"),
        (cuda("Tesla P100-PCIE-16GB", "6.0"), "p100"),
        (cuda("Tesla M40 24GB", "5.2"), "m40"),
        (cuda("Tesla K40c", "3.5"), "k40c"),
        (cuda("NVIDIA GeForce GTX TITAN X", "5.2"), "titanx"),
        (cuda("NVIDIA TITAN Xp", "6.1"), "titanxp"),
        (rocm("AMD Instinct MI50/MI60", "gfx906"), "mi50"),
        (rocm("AMD Instinct MI300X", "gfx942"), "mi300x"),
        (rocm("AMD Instinct MI300A", "gfx942:sramecc+:xnack-"), "mi300a"),
        (rocm("AMD Instinct MI250X", "gfx90a"), "mi250x"),
        (Reported("cpu", "cpu"), "cpu"),
    ],
)
def test_live_devices_are_matched(reported, name):
    spec = match_device(reported)
    assert spec.name == name
    assert spec.note == device_spec(name).note


@pytest.mark.parametrize(
    ("name", "lender"),
    [
        ("v100", "sm_80"),
        ("p100", "sm_80"),
        ("m40", "sm_80"),
        ("k40c", "sm_80"),
        ("gtx1080ti", "sm_80"),
        ("mi50", "gfx908"),
        ("mi100", ""),
    ],
)
def test_plans_for_devices_without_kernels_say_so(name, lender):
    plan = vb.plan([(64, 64, 64)], device=name)
    (note,) = (each for each in plan.notes if "no kernels are built for" in each)
    assert f"note: {note}" in " ".join(str(plan).split())
    assert note.endswith(f"the registers and shared memory of {lender}'s" if lender else "for plans only")
    assert (device_spec(name).resources == lender) == bool(lender)


def test_other_devices_of_the_table_need_no_note():
    assert not any(device_spec(name).note for name in ("h100", "a100", "l40s", "mi210", "mi300x", "cpu"))


def test_the_p100_has_two_processing_blocks():
    """Of 32768 registers each (Tesla P100 whitepaper), so that 88 a thread leave room for 11 warps in each."""
    assert (device_spec("p100").simds, device_spec("m40").simds) == (2, 4)
    assert waves_by_registers(device_spec("p100"), 88) == 22
    assert waves_by_registers(device_spec("m40"), 88) == 20


def test_a_boards_own_figures_count():
    assert match_device(cuda("NVIDIA A100-SXM4-40GB", "8.0")).bandwidth == 1555e9
    assert match_device(cuda("NVIDIA A100-SXM4-80GB", "8.0")) is device_spec("a100")


@pytest.mark.parametrize(
    ("reported", "resources", "said"),
    [
        (cuda("NVIDIA GeForce RTX 4080", "8.9", 76), "sm_89", "76 units, sm_89"),
        (cuda("NVIDIA RTX 6000 Ada H100-like", "8.9", 142), "sm_89", "142 units, sm_89"),  # a part of a name is no name
        (cuda("NVIDIA B300", "10.3", 160), "sm_80", "160 units, sm_103"),
        (cuda("NVIDIA Next", "13.0", 200), "sm_80", "200 units, sm_130, taken for sm_120"),
        (cuda("NVIDIA Thor", "11.0", 20), "sm_80", "20 units, sm_110, taken for sm_103"),
        (cuda("NVIDIA X", None, None), "sm_80", "100 units assumed, no compute capability, taken for sm_80"),
        # Of a name but another chip than the table's.
        (cuda("NVIDIA H100 80GB HBM3", "10.0", 148), "sm_80", "148 units, sm_100"),
        (rocm("AMD Instinct MI308X", "gfx942", 80), "gfx942", "80 units, gfx942"),
        (rocm("AMD Instinct MI355X", "gfx950", 256), "gfx90a", "256 units, gfx950, taken for gfx90a"),
        (rocm("gfx1100", None, 96), "gfx90a", "96 units, gfx1100, taken for gfx90a"),
    ],
)
def test_an_unknown_device_is_planned_as_its_driver_reports_it(reported, resources, said):
    spec = match_device(reported)
    assert spec.name == reported.device_kind
    assert spec.units == (reported.units or 100)
    assert (spec.resources, spec.calibration, spec.rules, spec.dots) == (resources, None, None, None)
    about = f"planned as its driver reports it ({said}); its clock and memory are assumed, nothing is measured"
    assert spec.note == f"{reported.device_kind} is not in the device table: {about}"
    plan = plan_problems([(256, 256, 256), (100_000, 8, 8), (8, 8, 100_000)], "float32", spec)
    plan.validate()
    assert plan.notes[0] == spec.note
    assert spec.note in " ".join(str(plan).split())


def test_what_the_driver_says_of_shared_memory_counts():
    assert match_device(cuda("NVIDIA X", "9.0", 10)).shared_block_bytes == 227 << 10
    assert match_device(cuda("NVIDIA X", "9.0", 10, shared_block_bytes=99 << 10)).shared_block_bytes == 99 << 10


def test_a_live_number_of_units_scales_what_depends_on_it():
    spec, half = device_spec("h100"), match_device(cuda("NVIDIA H100 80GB HBM3", "9.0", 66))
    assert half.units == 66
    assert half.peak_rate("float32") == spec.peak_rate("float32") / 2
    assert half.tlp_threshold == spec.tlp_threshold / 2
    assert half.bandwidth == spec.bandwidth
    assert match_device(cuda("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "9.0", 66)) == half
    assert match_device(cuda("NVIDIA H100 80GB HBM3", "9.0", 132)) == spec


def test_a_platform_without_kernels_is_refused():
    with pytest.raises(ValueError, match="there are no kernels for 'TPU v4'"):
        match_device(Reported("TPU v4", "tpu"))


def test_no_two_entries_claim_a_board():
    boards = [board for entry in entries().values() for board in entry.boards]
    assert len(boards) == len(set(boards))
    assert all(entry.boards for entry in entries().values())


@pytest.mark.parametrize("name", DEVICES)
def test_each_figure_has_a_source(name):
    """A comment on its line, on the line above, or on its table's heading. Each file says what the device is."""
    lines = (FOLDER / name / "device.toml").read_text().splitlines()
    assert lines[0].startswith("# ")
    explained = False
    for number, line in enumerate(lines):
        if line.startswith("["):
            explained = "#" in line or "#" in lines[number + 1][:1]
        elif "=" in line and not line.startswith(("#", '"', "architecture", "base")):
            above = lines[number - 1].startswith("#")
            zero = line.endswith("= 0.0")
            assert explained or "#" in line or above or zero, f"{name}: {line}"


def test_only_measured_devices_have_rules():
    """A device with the same chip as a measured one has its rules; all other devices have none."""
    for name, entry in entries().items():
        toml = tomllib.loads((FOLDER / name / "device.toml").read_text())
        assert ("rules" in toml) == (name == "h100")
        assert ("ragged" in toml) == (name in ("h100", "h200"))  # one of those of the H100 does not hold on an H200
        assert ("cores" in toml) == (name == "cpu")
        measured = name == "h100" or toml.get("base") == "h100"
        assert (entry.spec.rules is not None) == (entry.spec.ragged_rules is not None) == measured


def test_a_device_without_rules_takes_ordinary_tiles():
    """Streaming tiles and deep tiles were measured to be faster on an H100 only."""
    problems = [(10**6, 8, 8), (8, 8, 10**6)]
    bare = dataclasses.replace(device_spec("h100"), name="bare", rules=None)
    special = ("rows-", "deep-", "dots-", "columns-")

    def used(device):
        return [tile.name for tile in plan_problems(problems, "float32", device).tiles_used]

    for device in (bare, device_spec("a100")):
        assert used(device)
        assert not any(name.startswith(special) for name in used(device))
    assert any(name.startswith(special) for name in used(device_spec("h100")))


def test_a_wrong_device_toml_names_the_device():
    tables = tomllib.loads((FOLDER / "a10" / "device.toml").read_text())
    del tables["hardware"]["bandwidth"]
    with pytest.raises(ValueError, match=r"device 'a10': .*bandwidth"):
        spec_of("a10", "sm_86", tables, None)


@pytest.mark.parametrize("file", [*FOLDER.glob("*/calibration.csv")], ids=lambda file: file.parent.name)
def test_calibrations_mark_their_priors(file):
    rows = list(csv.DictReader(file.open(newline="")))
    device = file.parent.name
    built = {
        (kind, *tile.key)
        for kind in ("float32", "tf32", "tf32x3", "bfloat16", "float64", "float8_e4m3fn", "int8")
        for tile in catalogue_for(kind, device_spec(device))
    }
    assert rows
    for row in rows:
        assert tuple(row) == COLUMNS
        numbers = [int(row[column]) for column in COLUMNS[3:11]]
        assert row["priors"].split() == priors_of(numbers), row
        assert (row["rms"] == "") == (row["points"] == "")
        assert len(row["date"]) == 10
        assert row["commit"]
        assert (row["kind"], row["tile"], int(row["threads"])) in built


def test_architectures_of_compiled_kernels_are_known():
    used = {architecture.get("resources") for architecture in architectures().values()} - {None}
    assert used == {"sm_80", "sm_89", "sm_90a", "gfx908", "gfx90a", "gfx942"}


def test_what_jax_passes_on_of_a_driver():
    client = SimpleNamespace(platform_version="PJRT C API cuda 13000")
    known = {"core_count": 76, "compute_capability": "8.9", "shared_memory_per_block_optin": 101376}
    device = SimpleNamespace(device_kind="NVIDIA X", platform="gpu", client=client, **known)
    assert backends.reported_by(device) == cuda("NVIDIA X", "8.9", 76, shared_block_bytes=101376)
    silent = SimpleNamespace(device_kind="NVIDIA X", platform="gpu", client=client)
    assert backends.reported_by(silent) == cuda("NVIDIA X")
    amd = SimpleNamespace(device_kind="AMD X", platform="gpu", client=SimpleNamespace(platform_version="rocm 70000"))
    assert backends.reported_by(amd) == rocm("AMD X")
