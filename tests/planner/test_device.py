import dataclasses

import pytest

from jax_vbgemm._src.planner import DEVICES, device_spec, match_device


def test_the_table_has_the_devices_we_promise():
    ours = {"v100", "a100", "a800", "h100", "h200", "mi100", "mi210", "mi250x", "mi300x", "cpu"}
    assert ours | {"k40c", "m40", "p100", "mi50"} == set(DEVICES)


@pytest.mark.parametrize("name", DEVICES)
def test_entries_are_consistent(name):
    spec = device_spec(name)
    assert spec.name == name
    assert hash(spec) == hash(dataclasses.replace(spec))
    assert spec.max_waves * spec.wave_size == spec.max_threads
    assert spec.peak_rate("complex64") == spec.peak_rate("bfloat16") == spec.peak_rate("float32")
    assert spec.peak_rate("complex128") == spec.peak_rate("float64") <= spec.peak_rate("float32")
    if spec.kind == "gpu":
        assert spec.registers % (spec.simds * spec.wave_size) == 0
    if spec.kind == "gpu" and not spec.calibration:  # else found by trial
        # 40% of the threads a device can hold, as the paper's 65536 are of a V100's.
        assert spec.tlp_threshold == round(65536 / (80 * 2048) * spec.units * spec.max_threads)
        # Wang 2022: SIMDs of a unit over waves of a block of 128 threads.
        assert spec.split_factor == spec.simds // spec.waves_of(128)
        assert spec.load_balanced_threshold == spec.units * spec.max_threads // 2


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
    with pytest.raises(ValueError, match=r"unknown name 'h1000'; known are v100, a100, .*, cpu"):
        device_spec("h1000")
    with pytest.raises(TypeError, match="expected a DeviceSpec or a name, got 3"):
        device_spec(3)


@pytest.mark.parametrize(
    ("kind", "name", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "h100", True),
        ("NVIDIA H200", "h200", True),
        ("Tesla V100-SXM2-16GB", "v100", True),
        ("Tesla P100-PCIE-16GB", "p100", True),
        ("Tesla M40 24GB", "m40", True),
        ("Tesla K40c", "k40c", True),
        ("AMD Instinct MI50/MI60", "mi50", True),
        ("NVIDIA A100-SXM4-80GB", "a100", True),
        ("AMD Instinct MI300X", "mi300x", True),
        ("AMD Instinct MI250X", "mi250x", True),
        ("cpu", "cpu", True),
        ("NVIDIA GeForce RTX 4090", "a100", False),
        ("AMD Instinct MI355X", "mi210", False),
        ("gfx1100", "mi210", False),
    ],
)
def test_live_devices_are_matched(kind, name, known):
    spec = match_device(kind)
    assert spec.name == name
    assert spec.note == ("" if known else f"{kind} is not in the device table: planned as {name}")


def test_a_live_number_of_units_scales_what_depends_on_it():
    spec, half = device_spec("h100"), match_device("NVIDIA H100 80GB HBM3", 66)
    assert half.units == 66
    assert half.peak_rate("float32") == spec.peak_rate("float32") / 2
    assert half.tlp_threshold == spec.tlp_threshold / 2
    assert half.bandwidth == spec.bandwidth
    assert match_device("NVIDIA H100 80GB HBM3", 132) == spec


def test_a_platform_without_kernels_is_refused():
    with pytest.raises(ValueError, match="there are no kernels for 'TPU v4'"):
        match_device("TPU v4")
