"""Zhang 2025, against a transcription of Eq. 4, Eq. 10 and Algorithm 1 in plain loops."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jax_vbgemm as vb
from jax_vbgemm._src.planner import DEVICES as ALL_DEVICES
from jax_vbgemm._src.planner import catalogue_for, device_spec
from jax_vbgemm._src.planner.model.occupancy import active_waves, work_per_thread
from jax_vbgemm._src.planner.papers.load_balanced import table_3

from .cases import DEVICES, ceil_div, make, names, num_tiles, problem_lists

TABLE_3 = {  # Tm, Tn, threads, W_CP, W_DL
    "small": (16, 16, 128, 2, 6),
    "small-medium": (16, 32, 128, 4, 10),
    "medium": (32, 32, 128, 8, 16),
    "medium-large": (32, 64, 256, 8, 14),
    "large": (64, 64, 256, 16, 24),
}
CLASSES = list(TABLE_3)


def initial(problem, undivided="fits", divides_k=False):
    fitting = [c for c in CLASSES if TABLE_3[c][0] <= problem.m and TABLE_3[c][1] <= problem.n]
    dividing = [c for c in fitting if problem.m % TABLE_3[c][0] == 0 and problem.n % TABLE_3[c][1] == 0]
    if divides_k and problem.k % 16:
        dividing = []
    return (dividing or (fitting if undivided == "fits" else []) or ["small"])[-1]


def reference(problems, threshold, wave_size, most_waves):
    """(names, TLP_new), recomputed from scratch before every single decision."""
    return readings(problems, threshold, wave_size, most_waves, "class", "class")


@given(problem_lists, st.integers(0, 40_000), st.sampled_from((64, 300, 1000)), st.sampled_from(("h100", "mi210")))
def test_tiles_are_those_of_algorithm_1(problems, threshold, most, device):
    given_waves = {name: most // (position + 1) for position, name in enumerate(CLASSES)}
    plan = make(vb.LoadBalanced(threshold, given_waves), problems, device)
    expected, tlp = reference(problems, threshold, plan.device.wave_size, given_waves)
    assert names(plan) == expected
    assert plan.tlp == tlp


@given(problem_lists, st.sampled_from(DEVICES))
def test_the_devices_own_waves_and_threshold(problems, device):
    spec = device_spec(device)
    plan = make(vb.LoadBalanced(), problems, device)
    most = {name: active_waves(plan.catalogue.find(name, TABLE_3[name][2]), spec) * spec.units for name in CLASSES}
    expected, tlp = reference(problems, spec.load_balanced_threshold, spec.wave_size, most)
    assert (names(plan), plan.tlp) == (expected, tlp)


def test_the_initial_tile_divides_if_any_does():
    shapes = [(64, 64, 5), (96, 64, 5), (96, 96, 5), (80, 96, 5), (48, 48, 5), (65, 70, 5), (17, 40, 5), (16, 15, 5)]
    expected = ["large", "medium-large", "medium", "small-medium", "small", "large", "small-medium", "small"]
    assert names(make(vb.LoadBalanced(tlp_threshold=0), shapes)) == expected


@given(problem_lists, st.sampled_from(("fits", "small")), st.booleans(), st.sampled_from(DEVICES))
def test_readings_of_equation_10(problems, undivided, divides_k, device):
    planner = vb.LoadBalanced(tlp_threshold=0, undivided=undivided, divides_k=divides_k)
    assert names(make(planner, problems, device)) == [initial(p, undivided, divides_k) for p in problems]


def test_readings_of_equation_10_by_hand():
    shapes = [(64, 64, 16), (64, 64, 17), (65, 70, 16)]
    chosen = {
        (undivided, k): names(make(vb.LoadBalanced(tlp_threshold=0, undivided=undivided, divides_k=k), shapes))
        for undivided in ("fits", "small")
        for k in (False, True)
    }
    assert chosen == {
        ("fits", False): ["large", "large", "large"], ("fits", True): ["large", "large", "large"],
        ("small", False): ["large", "large", "small"], ("small", True): ["large", "small", "small"],
    }  # fmt: skip


def test_demotion_by_hand():
    # Wave 64 on an MI210 and all waves active: a large block has 4 waves, 256 threads; a medium-large one too.
    waves = dict.fromkeys(CLASSES, 10**6)
    shapes = [(64, 64, 8), (128, 64, 8), (64, 64, 8)]  # 1, 2, 1 blocks of 64 x 64: 1024 threads

    def plan(threshold):
        return make(vb.LoadBalanced(threshold, waves), shapes, "mi210")

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
    assert names(make(vb.LoadBalanced(384, waves), shapes)) == ["small-medium", "medium", "small-medium"]
    assert names(make(vb.LoadBalanced(512, waves), shapes)) == ["small-medium"] * 3
    # In batch order: the second, demoted into the class, comes before the third.
    assert names(make(vb.LoadBalanced(513, waves), shapes)) == ["small", "small-medium", "small-medium"]
    assert names(make(vb.LoadBalanced(641, waves), shapes)) == ["small", "small", "small-medium"]


def test_only_active_waves_count():
    shapes = [(16, 16, 8)] * 100
    assert make(vb.LoadBalanced(0, {"small": 10}), shapes).tlp == 32 * 10
    assert make(vb.LoadBalanced(0, {"small": 10**6}), shapes).tlp == 32 * 400
    assert make(vb.LoadBalanced(0, {"small": 10}), shapes, "mi210").tlp == 64 * 10


@pytest.mark.parametrize(("edge", "computed", "moved"), [(16, 2, (4, 6)), (32, 8, (12, 16)), (64, 32, (40, 48))])
def test_the_papers_table_2(edge, computed, moved):
    """Tk of 8 and of 16, all tiles by 128 threads."""
    assert [work_per_thread(edge, edge, k, 128) for k in (8, 16)] == [(computed, each) for each in moved]


ONE_OF_EACH = [(16, 16, 8), (16, 32, 8), (32, 32, 8), (32, 64, 8), (64, 64, 8)]


@pytest.mark.parametrize("device", ["h100", "mi210", "cpu"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_the_papers_table_3(device, dtype):
    found = table_3(catalogue_for(dtype, device_spec(device)))
    assert found == {(name, threads): (w_cp, w_dl) for name, (_, _, threads, w_cp, w_dl) in TABLE_3.items()}
    assert [w_dl for _, w_dl in found.values()] == [6, 10, 16, 14, 24]


@pytest.mark.parametrize(
    ("device", "dtype", "moved"),
    [
        # Steps of 128 bytes along K, the large tile's of 64: of float32 32 and 16 elements, of float64 half as many.
        ("h100", "float32", [10, 16, 24, 20, 24]),
        ("h100", "float64", [6, 10, 16, 14, 20]),
        ("h100", "bfloat16", [18, 28, 40, 32, 32]),
        ("h100", "complex64", [6, 10, 16, 14, 20]),
        # On CDNA steps are half as long, but not below 8 elements.
        ("mi210", "float32", [6, 10, 16, 14, 20]),
        ("mi210", "float64", [4, 7, 12, 11, 20]),
        ("mi210", "bfloat16", [10, 16, 24, 20, 24]),
        ("mi100", "complex64", [4, 7, 12, 11, 20]),
    ],
)
def test_work_per_thread_is_that_of_the_kernels_steps(device, dtype, moved):
    plan = make(vb.LoadBalanced(tlp_threshold=0, tensor=False), ONE_OF_EACH, device, dtype)
    assert [w_cp for w_cp, _ in plan.work_per_thread.values()] == [2, 4, 8, 8, 16]
    assert [w_dl for _, w_dl in plan.work_per_thread.values()] == moved


@pytest.mark.parametrize(
    ("device", "kind", "tile", "step"),
    [
        ("mi210", "float32", "mma-64x64", 16),  # 64 bytes
        ("mi210", "bfloat16", "mma-64x64", 32),
        ("mi210", "float64", "mma-64x64", 8),
        ("mi210", "float32", "deep-8x8", 128),
        ("mi210", "float32", "rows-256x8", 32),
        ("h100", "float32", "rows-256x8", 48),
        ("h100", "float64", "rows-256x8", 48),
        ("h100", "bfloat16", "columns-8x256", 64),
        ("h100", "tf32", "mma-rows-256x32", 64),
        ("h100", "float64", "mma-rows-256x32", 48),
        ("h100", "float32", "deep-8x8", 128),
        ("h100", "float64", "dots-64x4", 64),
        ("h100", "bfloat16", "mma-64x64", 64),
        ("h100", "int8", "mma-64x64", 128),
        ("cpu", "float64", "cpu-large", 256),
    ],
)
def test_steps_of_other_kernels(device, kind, tile, step):
    plan = make(vb.Uniform(tile), [(64, 64, 64)], device, kind)
    (shape,) = plan.tiles_used
    (work,) = plan.work_per_thread.values()
    assert work == work_per_thread(shape.m, shape.n, step, shape.threads)


# The readings that the text allows.


def readings(problems, threshold, wave_size, most_waves, bound, demotion, unreached="highest"):
    """(names, TLP_new) with every step written out."""
    chosen, seen = [initial(p) for p in problems], []

    def tlp():
        waves = {c: [] for c in CLASSES}
        for p, mine in zip(problems, chosen, strict=True):
            m, n, threads, *_ = TABLE_3[mine]
            waves[mine].append(num_tiles(p, m, n) * ceil_div(threads, wave_size))
        if bound == "none":
            total = sum(map(sum, waves.values()))
        elif bound == "problem":
            total = sum(min(each, most_waves[c]) for c in CLASSES for each in waves[c])
        elif bound == "class":
            total = sum(min(sum(waves[c]), most_waves[c]) for c in CLASSES)
        else:
            every = sum(map(sum, waves.values()))
            total = every / max(1.0, sum(sum(waves[c]) / most_waves[c] for c in CLASSES))
        return total * wave_size

    def is_reached():
        seen.append((tlp(), list(chosen)))
        return seen[-1][0] >= threshold

    def demote(index):
        chosen[index] = CLASSES[max(CLASSES.index(chosen[index]) - 1, 0)]

    def run():
        if demotion == "batch":
            while not is_reached():
                if set(chosen) <= {"small"}:
                    return False
                for index in range(len(problems)):
                    demote(index)
            return True
        for position in range(4, 0, -1):
            for index in range(len(problems)):
                if chosen[index] == CLASSES[position]:
                    if is_reached():
                        return True
                    demote(index)
        return is_reached()

    if not run() and unreached == "highest":
        highest = max(seen)[0]
        chosen = next(each for found, each in seen if found >= highest * (1 - 1e-9))
    return chosen, int(tlp())


@given(
    problem_lists,
    st.integers(0, 40_000),
    st.sampled_from((64, 300, 1000)),
    st.sampled_from(("h100", "mi210")),
    st.sampled_from(("problem", "class", "device", "none")),
    st.sampled_from(("class", "batch")),
    st.sampled_from(("highest", "smallest")),
)
def test_each_reading(problems, threshold, most, device, bound, demotion, unreached):
    waves = {name: most // (position + 1) for position, name in enumerate(CLASSES)}
    plan = make(vb.LoadBalanced(threshold, waves, bound, demotion, unreached), problems, device)
    expected, tlp = readings(problems, threshold, plan.device.wave_size, waves, bound, demotion, unreached)
    assert names(plan) == expected
    assert abs(plan.tlp - tlp) <= 1  # rounded down; shares of the device add up in another order


def test_readings_by_hand():
    # On an H100 a block of 128 threads has 4 waves; two of them of each class can be active.
    waves = dict.fromkeys(CLASSES, 8)
    shapes = [(16, 16, 8)] * 3 + [(32, 16, 8)] * 3  # 3 and 6 blocks of small: 36 waves

    def tlp(bound):
        return make(vb.LoadBalanced(0, waves, bound), shapes).tlp // 32

    # Problems of 4 and 8 waves all fit; a class, and here the device, has 8.
    assert [tlp(bound) for bound in ("none", "problem", "class", "device")] == [36, 36, 8, 8]
    mixed = [(16, 16, 8), (16, 32, 8)]  # 4 waves of two classes: half of the device each
    assert [make(vb.LoadBalanced(0, waves, bound), mixed).tlp // 32 for bound in ("class", "device")] == [8, 8]
    more = [*mixed, *mixed]
    assert [make(vb.LoadBalanced(0, waves, bound), more).tlp // 32 for bound in ("class", "device")] == [16, 8]


def test_a_pass_of_algorithm_1_demotes_the_whole_batch():
    waves = dict.fromkeys(CLASSES, 10**6)
    shapes = [(64, 64, 8), (32, 32, 8), (16, 16, 8)]

    def plan(threshold, demotion):
        return names(make(vb.LoadBalanced(threshold, waves, "class", demotion), shapes))

    assert plan(512, "batch") == plan(512, "class") == ["large", "medium", "small"]  # 256 + 128 + 128 threads
    assert plan(513, "class") == ["medium-large", "medium", "small"]
    assert plan(513, "batch") == ["medium-large", "small-medium", "small"]
    assert plan(10**9, "batch") == ["small"] * 3


@pytest.mark.parametrize("name", [name for name, spec in ALL_DEVICES.items() if spec.device_type == "gpu"])
def test_the_devices_threshold_is_where_occupancy_counts(name):
    """Below every class's active threads Eq. 4-9 would make the plans of Eq. 3."""
    spec = device_spec(name)
    catalogue = catalogue_for("float32", spec)
    active = [active_waves(catalogue.find(c, TABLE_3[c][2]), spec) * spec.units * spec.wave_size for c in CLASSES]
    assert spec.load_balanced_threshold > min(active)


@pytest.mark.parametrize("name", [name for name, spec in ALL_DEVICES.items() if spec.device_type == "gpu"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "tf32", "bfloat16"])
@pytest.mark.parametrize("demotion", ["class", "batch"])
def test_no_default_threshold_makes_all_tiles_of_a_large_batch_the_smallest(name, dtype, demotion):
    """One class has fewer active threads than the threshold, and on some devices all classes together have."""
    planner = vb.LoadBalanced(demotion=demotion)
    largest = make(vb.LoadBalanced(tlp_threshold=0), [(64, 64, 64)], name, dtype).choices[0]
    assert make(planner, [(4096, 4096, 4096)], name, dtype).choices == (largest,)
    many = make(planner, [(512, 512, 512)] * 256, name, dtype)
    smallest = many.catalogue.find("mma-16x32" if many.tiles_used[0].tensor else "small", 128)
    assert smallest not in many.tiles_used
    assert many.predicted_seconds < make(vb.LoadBalanced(0), many.problems, name, dtype).predicted_seconds * 1.2


def test_where_the_threshold_is_out_of_reach_the_highest_tlp_is_taken_first():
    waves = dict.fromkeys(CLASSES, 16)  # 512 threads of each class
    shapes = [(64, 64, 8)] * 4

    def plan(unreached, demotion="class"):
        return make(vb.LoadBalanced(10**9, waves, demotion=demotion, unreached=unreached), shapes)

    # Of the four large blocks' 1024 threads 512 can be active. One problem demoted has 512 active threads of its class.
    assert names(plan("highest")) == ["medium-large", "large", "large", "large"]
    assert (plan("highest").tlp, plan("smallest").tlp) == (1024, 512)
    assert names(plan("smallest")) == ["small"] * 4
    assert names(plan("highest", "batch")) == ["large"] * 4


def test_the_new_tlp_changes_plans_at_the_default_threshold():
    shapes = [(64, 64, 64)] * 900
    new, old = (make(vb.LoadBalanced(bound=bound), shapes) for bound in ("class", "none"))
    assert old.tlp >= 900 * 256 > new.device.load_balanced_threshold > new.tlp - 32 * 4224
    assert set(names(old)) == {"large"}
    assert set(names(new)) == {"large", "medium-large"}


def test_on_tensor_cores_the_same_shapes_are_chosen():
    plan = make(vb.LoadBalanced(tlp_threshold=0), ONE_OF_EACH, dtype="tf32")
    plan.validate()
    assert names(plan) == ["mma-16x32", "mma-16x32", "mma-32x32", "mma-32x64", "mma-64x64"]
    assert names(make(vb.LoadBalanced(tlp_threshold=10**9), ONE_OF_EACH, dtype="tf32")) == ["mma-16x32"] * 5
    assert names(make(vb.LoadBalanced(tlp_threshold=0, tensor=False), ONE_OF_EACH, dtype="tf32")) == CLASSES
    assert names(make(vb.LoadBalanced(tlp_threshold=0), ONE_OF_EACH, dtype="float64")) == CLASSES


def test_options():
    assert hash(vb.LoadBalanced(active_waves={"large": 3, "small": 4})) == hash(
        vb.LoadBalanced(active_waves={"small": 4, "large": 3})
    )
    with pytest.raises(ValueError, match="LoadBalanced: active_waves = 'huge' must be one of 'small', 'small-medium'"):
        vb.LoadBalanced(active_waves={"huge": 3})
    with pytest.raises(ValueError, match=r"LoadBalanced: active_waves\['small'\] = -1 must be finite and not negative"):
        vb.LoadBalanced(active_waves={"small": -1})
    with pytest.raises(TypeError, match=r"LoadBalanced: active_waves\['small'\] = None must be a number"):
        vb.LoadBalanced(active_waves={"small": None})
    for pairs in (("small", 3), (("small",),), 3, ["small"]):
        with pytest.raises(TypeError, match=r"LoadBalanced: active_waves = .* must map classes to numbers"):
            vb.LoadBalanced(active_waves=pairs)
    assert vb.LoadBalanced(active_waves=(("small", 4),)) == vb.LoadBalanced(active_waves={"small": 4})
    with pytest.raises(ValueError, match="LoadBalanced: bound = 'unit' must be one of 'problem', 'class', 'device'"):
        vb.LoadBalanced(bound="unit")
    with pytest.raises(ValueError, match="LoadBalanced: undivided = 'none' must be one of 'fits', 'small'"):
        vb.LoadBalanced(undivided="none")
    with pytest.raises(ValueError, match="LoadBalanced: divides_k = 1 must be one of True, False"):
        vb.LoadBalanced(divides_k=1)
    with pytest.raises(ValueError, match="LoadBalanced: unreached = 'large' must be one of 'highest', 'smallest'"):
        vb.LoadBalanced(unreached="large")
    with pytest.raises(ValueError, match="LoadBalanced: demotion = 'all' must be one of 'class', 'batch'"):
        vb.LoadBalanced(demotion="all")
    with pytest.raises(TypeError, match="LoadBalanced: tlp_threshold = True must be a number"):
        vb.LoadBalanced(tlp_threshold=True)
