"""The partition of matrices among devices: complete, balanced and deterministic."""

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jax_vbgemm._src.many_devices.partition import Piece, in_rounds, partition
from jax_vbgemm._src.newton_schulz.cost import matrix_seconds


@given(st.lists(st.tuples(st.integers(0, 40), st.floats(0, 10)), max_size=12), st.integers(1, 9))
def test_every_matrix_has_one_device(stacks, devices):
    counts, seconds = [count for count, _ in stacks], [cost for _, cost in stacks]
    shares = partition(counts, seconds, devices)
    assert len(shares) == devices
    owned = sorted((p.array, matrix) for share in shares for p in share for matrix in range(p.start, p.stop))
    assert owned == [(array, matrix) for array, count in enumerate(counts) for matrix in range(count)]
    assert all(len({p.array for p in share}) == len(share) for share in shares)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from([0.0, 1e-5, 1.0])), max_size=12),
    st.integers(0, 3),
    st.integers(1, 5),
    st.sets(st.integers(0, 11)),
)
def test_every_matrix_is_in_one_round(stacks, kinds, devices, held):
    counts, seconds = [count for count, _ in stacks], [cost for _, cost in stacks]
    held = {index for index in held if index < len(counts) and counts[index] > 1}
    counts = [count * devices if index in held else count for index, count in enumerate(counts)]
    kind_of = [index % (kinds + 1) if count == 1 else None for index, count in enumerate(counts)]
    rounds = in_rounds(counts, kind_of, seconds, devices, held)
    for index in held:
        each = counts[index] // devices
        of_device = [[p for of_round in rounds for p in of_round.shares[d] if p.array == index] for d in range(devices)]
        assert all(d * each <= p.start and p.stop <= (d + 1) * each for d, share in enumerate(of_device) for p in share)
    pieces = [p for of_round in rounds for share in of_round.shares for p in share]
    owned = sorted((p.array, matrix) for p in pieces for matrix in range(p.start, p.stop))
    assert owned == [(array, matrix) for array, count in enumerate(counts) for matrix in range(count)]
    assert all(of_round.is_even for of_round in rounds[1:])
    for of_round in rounds:
        assert len(of_round.shares) == devices
        if of_round.is_even:
            for slot in zip(*of_round.shares, strict=True):
                assert len({(p.stop - p.start, kind_of[p.array]) for p in slot}) == 1
                assert kind_of[slot[0].array] is not None or len({p.array for p in slot}) == 1


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=40), st.integers(1, 8))
def test_the_last_device_is_at_most_a_third_late(seconds, devices):
    """Graham's bound, checked against lower bounds of every partition."""
    shares = partition([1] * len(seconds), seconds, devices)
    busiest = max(sum(seconds[p.array] for p in share) for share in shares)
    assert busiest <= sum(seconds) / devices + max(seconds) * (1 - 1 / devices) + 1e-9
    if len(seconds) <= devices:
        assert busiest == max(seconds)


def test_a_stack_is_divided_in_consecutive_parts():
    assert partition([12], [1.0], 4) == tuple((Piece(0, 3 * i, 3 * i + 3),) for i in range(4))
    lengths = [share[0].stop - share[0].start for share in partition([1001], [1.0], 2)]
    assert sum(lengths) == 1001
    assert max(lengths) <= 1.2 * min(lengths)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.complex64, jnp.float8_e4m3fn])
def test_a_matrix_of_a_stack_costs_a_part_of_it(dtype):
    shapes = [(768, 768), (768, 3072), (4, 768, 768), (0, 5)]
    square, wide, in_stack, nothing = matrix_seconds([jnp.zeros(shape, dtype) for shape in shapes], None, "auto")
    assert nothing == 0
    assert 0 < square < wide
    assert in_stack == pytest.approx(square, rel=0.5)
