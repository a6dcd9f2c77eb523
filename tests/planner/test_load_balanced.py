"""Zhang 2025, against a transcription of Eq. 4, Eq. 10 and Algorithm 1 in plain loops."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_vbgemm._src.planner import LoadBalanced, catalogue_for, device_spec
from jax_vbgemm._src.planner.model.occupancy import active_waves
from jax_vbgemm._src.problem import problems_of

from .cases import DEVICES, ceil_div, make, names, num_tiles, problem_lists

TABLE_3 = {  # Tm, Tn, threads, W_CP, W_DL
    "small": (16, 16, 128, 2, 6),
    "small-medium": (16, 32, 128, 4, 10),
    "medium": (32, 32, 128, 8, 16),
    "medium-large": (32, 64, 256, 8, 14),
    "large": (64, 64, 256, 16, 24),
}
CLASSES = list(TABLE_3)


def initial(problem):
    fitting = [c for c in CLASSES if TABLE_3[c][0] <= problem.m and TABLE_3[c][1] <= problem.n]
    dividing = [c for c in fitting if problem.m % TABLE_3[c][0] == 0 and problem.n % TABLE_3[c][1] == 0]
    return (dividing or fitting or ["small"])[-1]


def reference(problems, threshold, wave_size, most_waves):
    """(names, TLP_new), recomputed from scratch before every single decision."""
    chosen = [initial(p) for p in problems]

    def tlp():
        total = 0
        for c in CLASSES:
            m, n, threads, *_ = TABLE_3[c]
            blocks = sum(num_tiles(p, m, n) for p, mine in zip(problems, chosen, strict=True) if mine == c)
            total += min(blocks * ceil_div(threads, wave_size), most_waves[c])
        return total * wave_size

    for position in range(4, 0, -1):
        for index in range(len(problems)):
            if chosen[index] == CLASSES[position]:
                if tlp() >= threshold:
                    return chosen, tlp()
                chosen[index] = CLASSES[position - 1]
    return chosen, tlp()


@given(problem_lists, st.integers(0, 40_000), st.sampled_from((64, 300, 1000)), st.sampled_from(("h100", "mi210")))
def test_tiles_are_those_of_algorithm_1(problems, threshold, most, device):
    given_waves = {name: most // (position + 1) for position, name in enumerate(CLASSES)}
    plan = make(LoadBalanced(threshold, given_waves), problems, device)
    expected, tlp = reference(problems, threshold, plan.device.wave_size, given_waves)
    assert names(plan) == expected
    assert plan.tlp == tlp


@given(problem_lists, st.sampled_from(DEVICES))
def test_the_devices_own_waves_and_threshold(problems, device):
    spec = device_spec(device)
    plan = make(LoadBalanced(), problems, device)
    most = {name: active_waves(plan.catalogue.find(name, TABLE_3[name][2]), spec) * spec.units for name in CLASSES}
    expected, tlp = reference(problems, spec.load_balanced_threshold, spec.wave_size, most)
    assert (names(plan), plan.tlp) == (expected, tlp)


def test_the_initial_tile_divides_if_any_does():
    shapes = [(64, 64, 5), (96, 64, 5), (96, 96, 5), (80, 96, 5), (48, 48, 5), (65, 70, 5), (17, 40, 5), (16, 15, 5)]
    expected = ["large", "medium-large", "medium", "small-medium", "small", "large", "small-medium", "small"]
    assert names(make(LoadBalanced(tlp_threshold=0), shapes)) == expected


def test_demotion_by_hand():
    # Wave 64 on an MI210 and all waves active: a large block has 4 waves, 256 threads; a medium-large one too.
    waves = dict.fromkeys(CLASSES, 10**6)
    shapes = [(64, 64, 8), (128, 64, 8), (64, 64, 8)]  # 1, 2, 1 blocks of 64 x 64: 1024 threads

    def plan(threshold):
        return make(LoadBalanced(threshold, waves), shapes, "mi210")

    assert (names(plan(1024)), plan(1024).tlp) == (["large"] * 3, 1024)  # reached, not exceeded
    assert (names(plan(1025)), plan(1025).tlp) == (["medium-large", "large", "large"], 1280)
    assert (names(plan(1281)), plan(1281).tlp) == (["medium-large", "medium-large", "large"], 1792)
    assert (names(plan(2048)), plan(2048).tlp) == (["medium-large"] * 3, 2048)
    # Twice as many medium blocks, of half the threads: TLP stays at 2048 and the first is demoted once more.
    assert (names(plan(2049)), plan(2049).tlp) == (["small-medium", "medium", "medium"], 2560)
    assert names(plan(10**9)) == ["small"] * 3


def test_the_class_below_counts_those_demoted_into_it():
    waves = dict.fromkeys(CLASSES, 10**6)
    shapes = [(16, 32, 8), (32, 32, 8), (16, 32, 8)]  # 3 blocks of 128 threads; all small-medium: 4, small: 2 + 4 + 2
    assert names(make(LoadBalanced(384, waves), shapes)) == ["small-medium", "medium", "small-medium"]
    assert names(make(LoadBalanced(512, waves), shapes)) == ["small-medium"] * 3
    # In batch order: the second, demoted into the class, comes before the third.
    assert names(make(LoadBalanced(513, waves), shapes)) == ["small", "small-medium", "small-medium"]
    assert names(make(LoadBalanced(641, waves), shapes)) == ["small", "small", "small-medium"]


def test_only_active_waves_count():
    shapes = [(16, 16, 8)] * 100
    assert make(LoadBalanced(0, {"small": 10}), shapes).tlp == 32 * 10
    assert make(LoadBalanced(0, {"small": 10**6}), shapes).tlp == 32 * 400
    assert make(LoadBalanced(0, {"small": 10}), shapes, "mi210").tlp == 64 * 10


def test_work_per_thread_is_table_3():
    # The table is for steps of 16 along K; what our kernels take is their own matter.
    device = device_spec("mi210")
    built = catalogue_for("float32", device)
    catalogue = dataclasses.replace(built, tiles=tuple(dataclasses.replace(tile, k=16) for tile in built))
    shapes = problems_of([(16, 16, 8), (16, 32, 8), (32, 32, 8), (32, 64, 8), (64, 64, 8)])
    plan = LoadBalanced(tlp_threshold=0)(shapes, device, catalogue)
    expected = {(name, threads): (w_cp, w_dl) for name, (_, _, threads, w_cp, w_dl) in TABLE_3.items()}
    assert plan.work_per_thread == expected


def test_options():
    assert hash(LoadBalanced(active_waves={"large": 3, "small": 4})) == hash(
        LoadBalanced(active_waves={"small": 4, "large": 3})
    )
    with pytest.raises(ValueError, match="LoadBalanced: active_waves = 'huge' must be one of 'small', 'small-medium'"):
        LoadBalanced(active_waves={"huge": 3})
    with pytest.raises(ValueError, match=r"LoadBalanced: active_waves\['small'\] = -1 must be finite and not negative"):
        LoadBalanced(active_waves={"small": -1})
    with pytest.raises(TypeError, match="LoadBalanced: tlp_threshold = True must be a number"):
        LoadBalanced(tlp_threshold=True)
