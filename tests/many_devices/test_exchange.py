"""The exchange of rows whose number is data, and the choice of an exchange by what it sends and by measured rates."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax.sharding import PartitionSpec as P

from jax_vbgemm._src.exchange import choice
from jax_vbgemm._src.exchange import ragged_exchange as ragged_exchange_module
from jax_vbgemm._src.exchange.ragged_exchange import ragged_exchange
from jax_vbgemm._src.planner import device_spec
from jax_vbgemm._src.planner.tables.rules import CollectiveRate

DEVICES, ROWS, SIZE, COLUMNS = 4, 6, 24, 3


def numbers():
    """How many rows go from one device to another: all of a device's rows, some, or none; one receives nothing."""
    counts = np.zeros((DEVICES, DEVICES), np.int32)
    counts[0], counts[1, 0], counts[3] = (2, 1, 0, 1), ROWS, (0, 3, 0, 3)
    return counts


def expected(rows, counts):
    result = np.zeros((DEVICES, SIZE, rows.shape[-1]))
    for receiver in range(DEVICES):
        parts = []
        for sender in range(DEVICES):
            first = counts[sender, :receiver].sum()
            parts.append(rows[sender, first : first + counts[sender, receiver]])
        received = np.concatenate(parts)
        result[receiver, : len(received)] = received
    return result


def on_mesh(function, *specs, check_vma=True):
    mesh = jax.make_mesh((DEVICES,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:DEVICES])
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=P("x"), check_vma=check_vma)


def exchange(rows, counts):
    return ragged_exchange(rows[0], counts, SIZE, ("x",))[None]


@pytest.mark.multidevice(4)
@pytest.mark.parametrize("check_vma", [True, False])
def test_rows_arrive_and_cotangents_return(check_vma):
    rows, counts = oracle.random((DEVICES, ROWS, COLUMNS), "float64"), numbers()
    send = on_mesh(exchange, P("x"), P(), check_vma=check_vma)
    weights = oracle.random((DEVICES, SIZE, COLUMNS), "float64", 1)
    tangent = oracle.random(rows.shape, "float64", 2)

    @jax.jit
    def derivatives(rows, weights, tangent):
        value, pull = jax.vjp(lambda rows: send(rows, counts), rows)
        return value, *pull(weights), jax.jvp(lambda rows: send(rows, counts), (rows,), (tangent,))[1]

    value, back, pushed = derivatives(rows, weights, tangent)
    np.testing.assert_array_equal(value, expected(rows, counts))
    # The exchange is linear: the pairing of cotangents with its tangents is that of what it returns with rows.
    np.testing.assert_allclose(np.vdot(weights, pushed), np.vdot(back, tangent), rtol=1e-12)


def documented_ragged_all_to_all(operand, output, input_offsets, send_sizes, output_offsets, recv_sizes, *, axis_name):
    """`jax.lax.ragged_all_to_all` by its documentation, NaN where both sides disagree about a size."""
    everywhere = [jax.lax.all_gather(x, axis_name) for x in (operand, input_offsets, send_sizes, output_offsets)]
    me, place = jax.lax.axis_index(axis_name), jnp.arange(len(output), dtype=jnp.int32)
    for sender, (rows, offset, size, written) in enumerate(zip(*everywhere, strict=True)):
        index = place - written[me]
        values = rows.at[offset[me] + index].get(mode="fill", fill_value=np.nan)
        values = jnp.where(size[me] == recv_sizes[sender], values, np.nan)
        output = jnp.where(((index >= 0) & (index < size[me]))[:, None], values, output)
    return output


@pytest.mark.multidevice(4)
def test_the_form_for_gpus(monkeypatch):
    """XLA has no ragged all-to-all on CPUs: here it is one by its documentation; and a program for CUDA has it."""
    rows, counts = oracle.random((DEVICES, ROWS, COLUMNS), "float64"), numbers()
    program = jax.jit(on_mesh(exchange, P("x"), P()))
    assert "@ragged_all_to_all" in program.trace(rows, counts).lower(lowering_platforms=("cuda",)).as_text()
    monkeypatch.setattr(ragged_exchange_module.lax, "ragged_all_to_all", documented_ragged_all_to_all)

    def form(rows, counts):
        return ragged_exchange_module._by_ragged_all_to_all(rows[0], counts, size=SIZE, axes=("x",))[None]

    np.testing.assert_array_equal(jax.jit(on_mesh(form, P("x"), P()))(rows, counts), expected(rows, counts))


@pytest.mark.multidevice(4)
def test_vmap_over_rows_and_over_numbers():
    rows, counts = oracle.random((DEVICES, 2, ROWS, COLUMNS), "float64"), np.stack([numbers(), numbers().T // 2])
    both = np.stack([np.stack([expected(rows[:, i], c) for i in range(2)], 1) for c in counts])

    def mapped(rows, counts):
        of_rows = jax.vmap(exchange, (0, None), 1)(rows[0][:, None], counts[0])
        of_both = jax.vmap(exchange, (0, 0), 1)(rows[0][:, None], counts)
        return of_rows, of_both

    of_rows, of_both = jax.jit(on_mesh(mapped, P("x"), P()))(rows, counts)
    np.testing.assert_array_equal(of_rows, both[0])
    np.testing.assert_array_equal(of_both, np.stack([both[0][:, 0], both[1][:, 1]], 1))


def measured(**rates):
    return replace(device_spec("h100"), collectives=tuple((name, CollectiveRate(*r)) for name, r in rates.items()))


LAYER = {"tokens": 8192, "columns": 2048, "results": 2048, "itemsize": 2, "wide_itemsize": 4}


@pytest.mark.parametrize(
    ("devices", "k", "rates", "chosen"),
    [
        (2, 8, {}, "all_gather"),
        # Contributions of half as many bytes, by a collective that is as fast.
        (2, 8, {"all_gather": (1e-5, 2e11), "psum_scatter": (1e-5, 2e11), "all_to_all": (1e-5, 2e11)}, "all_to_all"),
        (2, 8, {"all_gather": (1e-5, 2e11), "psum_scatter": (1e-5, 2e11), "all_to_all": (1e-3, 2e11)}, "all_gather"),
        # All others being unknown, one that was measured to be fast is not known to be the fastest.
        (2, 8, {"all_gather": (1e-5, 2e11), "all_to_all": (1e-5, 2e11)}, "all_gather"),
        # Rows are fewer than tokens of all devices where there are more devices than choices of a token.
        (32, 4, dict.fromkeys(("all_gather", "psum_scatter", "ragged_all_to_all"), (1e-05, 200000000000.0)),
         "ragged_all_to_all"),
        (32, 4, {"all_gather": (1e-5, 2e11), "psum_scatter": (1e-5, 2e11), "ragged_all_to_all": (5e-2, np.inf)},
         "all_gather"),
    ],
)  # fmt: skip
def test_the_choice_follows_measured_rates(devices, k, rates, chosen):
    made = choice.choose(choice.traffic_of_tokens(k=k, devices=devices, **LAYER), measured(**rates))
    assert made.exchange == chosen
    assert made.why.startswith(f"{chosen} of: all_gather: ")
    assert ("not measured on h100" in made.why) == (len(rates) < 4)


def test_a_collective_that_was_measured_to_be_slow_is_not_chosen():
    spec = device_spec("h200")
    assert dict(spec.collectives)["ragged_all_to_all"].bandwidth < 1e10
    assert device_spec("h100").collectives == ()
    for traffic, chosen in (
        (choice.traffic_of_tokens(k=8, devices=2, **LAYER), "all_to_all"),
        (choice.traffic_of_rows(65536, 2048, 2, 2), "all_gather"),
    ):
        assert choice.choose(traffic, spec).exchange == chosen


def test_rates_of_one_host_say_nothing_of_several_processes(monkeypatch):
    rates = dict.fromkeys(("all_gather", "psum_scatter", "all_to_all"), (1e-5, 2e11))
    traffic = choice.traffic_of_tokens(k=8, devices=2, **LAYER)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    made = choice.choose(traffic, measured(**rates))
    assert made.exchange == "all_gather"
    assert "not measured between processes" in made.why
