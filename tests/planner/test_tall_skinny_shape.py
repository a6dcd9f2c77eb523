"""Which problems are tall and skinny."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_vbgemm._src.planner import DEVICES
from jax_vbgemm._src.planner.model.tall_skinny_model import Gpu, t2_threshold, thread_registers
from jax_vbgemm._src.planner.model.tall_skinny_shape import SKINNY, TALL, Shape, classify, is_tall_skinny, shapes_of
from jax_vbgemm._src.problem import ProblemSizes

from .cases import problem_lists

MIRRORED = {
    Shape.ORDINARY: Shape.ORDINARY,
    Shape.TSM2: Shape.TSM2_MIRRORED,
    Shape.TSM2_MIRRORED: Shape.TSM2,
    Shape.ISM2: Shape.ISM2_MIRRORED,
    Shape.ISM2_MIRRORED: Shape.ISM2,
    Shape.REDUCTION: Shape.REDUCTION,
}
sizes = st.sampled_from((0, 1, 2, SKINNY - 1, SKINNY, SKINNY + 1, 500, TALL - 1, TALL, TALL + 1, 10**5, 2**31 - 1))


@pytest.mark.parametrize(
    ("m", "n", "k", "shape"),
    [
        # The paper's: section 4.1, section 4.5, section 5 and section 6, with m, n and k in our order.
        (20480, 2, 20480, Shape.TSM2),
        (30720, 16, 30720, Shape.TSM2),
        (15360, 16, 7680, Shape.TSM2),
        (102400, 4, 4, Shape.ISM2),
        (10**7, 16, 16, Shape.ISM2),
        (10**4, 8, 8, Shape.ISM2),
        # A matrix times a vector, and what lies between ISM2's k and TSM2's.
        (4096, 1, 4096, Shape.TSM2),
        (10**6, 16, 33, Shape.TSM2),
        (10**6, 1, 1, Shape.ISM2),
        # Mirror images.
        (2, 20480, 20480, Shape.TSM2_MIRRORED),
        (4, 102400, 4, Shape.ISM2_MIRRORED),
        # A^T B of two tall matrices.
        (16, 16, 10**6, Shape.REDUCTION),
        (32, 1, 1024, Shape.REDUCTION),
        # Neither.
        (4096, 4096, 4096, Shape.ORDINARY),
        (4096, 33, 4096, Shape.ORDINARY),
        (1023, 16, 4096, Shape.ORDINARY),
        (1024, 16, 4096, Shape.TSM2),
        (1024, 32, 32, Shape.ISM2),
        (256, 16, 10**6, Shape.ORDINARY),
        (16, 256, 10**6, Shape.ORDINARY),
        (16, 16, 16, Shape.ORDINARY),
        (16, 16, 1023, Shape.ORDINARY),
        # Large along both sides of C, with k = 1: C is what costs.
        (4096, 4096, 1, Shape.ORDINARY),
        # No products.
        (10**6, 16, 0, Shape.ORDINARY),
        (10**6, 0, 16, Shape.ORDINARY),
        (0, 16, 10**6, Shape.ORDINARY),
    ],
)
def test_shapes(m, n, k, shape):
    assert classify(m, n, k) == shape
    assert is_tall_skinny(m, n, k) == (shape != Shape.ORDINARY)


@given(sizes, sizes, sizes)
def test_the_mirror_image_of_a_problem_has_the_mirrored_shape(m, n, k):
    assert classify(n, m, k) == MIRRORED[Shape(int(classify(m, n, k)))]


@given(sizes, sizes, sizes)
def test_what_is_tall_has_one_large_and_one_small_dimension(m, n, k):
    dimensions = (m, n, k)
    if is_tall_skinny(m, n, k):
        assert 1 <= min(dimensions) <= SKINNY
        assert max(dimensions) >= TALL


@given(problem_lists)
def test_a_list_is_classified_at_once(problems):
    shapes = shapes_of(ProblemSizes.of(problems))
    assert shapes.shape == (len(problems),)
    assert shapes.tolist() == [int(classify(p.m, p.n, p.k)) for p in problems]
    assert is_tall_skinny(*(np.array([getattr(p, axis) for p in problems]) for axis in "mnk")).dtype == bool


@pytest.mark.parametrize(
    "device", [spec for spec in DEVICES.values() if spec.device_type == "gpu"], ids=lambda spec: spec.name
)
def test_the_reasons_of_the_threshold_hold(device):
    gpu = Gpu.of(device)
    few = gpu.peak_rate("float64") < gpu.peak_rate("float32") / 31  # 1/32 by data sheets, which round
    consumer = ("m40", "m60", "titanx", "titanxp", "gtx1080ti", "a10", "l40s", "rtx4090")
    assert few == (gpu.name in consumer)
    thresholds = [t2_threshold(gpu, dtype) for dtype in (("float32",) if few else ("float32", "float64"))]
    assert min(thresholds) > 38 > SKINNY
    assert thread_registers(gpu, "float64", SKINNY, 1) == 196 + gpu.setup_registers <= 255
    assert thread_registers(gpu, "float64", 2 * SKINNY, 1) > 255
