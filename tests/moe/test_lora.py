"""Low-rank adapters of experts, against a layer whose weights are their sums with the adapters' products."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

from jax_vbgemm import moe

TOKENS, EXPERTS, K, D, F, N, RANK = 9, 4, 2, 5, 3, 6, 2
LOGITS = jax.device_get(oracle.random((TOKENS, EXPERTS), "float64", 5))
SHAPES = {
    "x": (TOKENS, D), "gate": (EXPERTS, D, F), "up": (EXPERTS, D, F), "down": (EXPERTS, F, N),
    "gate_a": (EXPERTS, D, RANK), "gate_b": (EXPERTS, RANK, F), "up_a": (EXPERTS, D, 3), "up_b": (EXPERTS, 3, F),
    "down_a": (EXPERTS, F, RANK), "down_b": (EXPERTS, RANK, N), "both_a": (EXPERTS, D, RANK),
    "both_b": (EXPERTS, RANK, 2 * F), "scale": (),
}  # fmt: skip
GIVEN = {name: oracle.random(shape, "float64", i) for i, (name, shape) in enumerate(SHAPES.items())}


def adapter(given, name):
    return given[f"{name}_a"], given[f"{name}_b"]


def low_rank(given, name):
    return given["scale"] * given[f"{name}_a"] @ given[f"{name}_b"]


def halves(given, axis=2):
    return jnp.concatenate([given["gate"], given["up"]], axis)


# Weights and adapters of a layer, the weights that the two make together, and options.
CASES = {
    "pair": lambda w: (
        (w["gate"], w["up"]), (adapter(w, "gate"), adapter(w, "up")),
        (w["gate"] + low_rank(w, "gate"), w["up"] + low_rank(w, "up")), {},
    ),
    "pair, only up, gelu": lambda w: (
        (w["gate"], w["up"]), (None, adapter(w, "up")), (w["gate"], w["up"] + low_rank(w, "up")),
        {"activation": "gelu"},
    ),
    "halves, transposed": lambda w: (
        halves(w).mT, adapter(w, "both"), (halves(w) + low_rank(w, "both")).mT, {"transpose_rhs": (True, False)}
    ),
    "interleaved, other gate": lambda w: (
        halves(w), adapter(w, "both"), halves(w) + low_rank(w, "both"),
        {"interleaved": True, "gate": moe.clamped_swiglu},
    ),
    "only down": lambda w: (halves(w), None, halves(w), {}),
    "no gate, relu": lambda w: (
        w["gate"], adapter(w, "gate"), w["gate"] + low_rank(w, "gate"), {"gated": False, "activation": "relu"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_adapter_is_a_low_rank_change_of_the_weights(case):
    """Values and gradients in everything, the factor of the adapters too; some tokens have no experts."""
    routing = moe.route(LOGITS, K, mask=np.arange(TOKENS) % 4 != 1)
    weight = oracle.random((TOKENS, N), "float64", 40)

    def ours(w):
        gate_up, of_gate_up, _, options = CASES[case](w)
        lora = of_gate_up, adapter(w, "down")
        return jnp.vdot(
            weight, moe.expert_mlp(w["x"], gate_up, w["down"], routing, lora=lora, lora_scale=w["scale"], **options)
        )

    def of_sums(w):
        _, _, gate_up, options = CASES[case](w)
        return jnp.vdot(
            weight, moe.expert_mlp(w["x"], gate_up, w["down"] + low_rank(w, "down"), routing, **options)
        )  # fmt: skip

    for a, b in zip(*(jax.tree.leaves(jax.jit(jax.value_and_grad(f))(GIVEN)) for f in (ours, of_sums)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


def test_frozen_weights_cost_no_gradients():
    """A gradient in adapters alone has no array of the weights' shapes, and that in weights has both."""
    routing = moe.route(LOGITS, K)
    weights, lora = (
        (GIVEN["gate"], GIVEN["up"], GIVEN["down"]),
        ((adapter(GIVEN, "gate"), None), adapter(GIVEN, "down")),
    )

    def loss(weights, lora):
        gate, up, down = weights
        return jnp.sum(moe.expert_mlp(GIVEN["x"], (gate, up), down, routing, lora=lora) ** 2)

    of_adapters, of_weights = (str(jax.make_jaxpr(jax.grad(loss, i))(weights, lora).jaxpr) for i in (1, 0))
    made = [f"f64[{EXPERTS},{D},{F}]", f"f64[{EXPERTS},{F},{N}]"]
    # Arguments of a program stand before its colon; constants and results of equations after it.
    of_adapters, of_weights = (
        [line for line in text.splitlines() if " = " in line] for text in (of_adapters, of_weights)
    )
    for shape in made:
        assert not any(shape in line.split(" = ")[0] for line in of_adapters)
        assert any(shape in line.split(" = ")[0] for line in of_weights)


def test_sixteen_bits_add_in_float32():
    w = {name: jax.device_put(np.asarray(value).astype("bfloat16")) for name, value in GIVEN.items()}
    lora = (adapter(w, "gate"), adapter(w, "up")), adapter(w, "down")
    routing = moe.route(LOGITS, K)
    f = jax.jit(lambda w, lora: moe.expert_mlp(w["x"], (w["gate"], w["up"]), w["down"], routing, lora=lora))
    y = f(w, lora)
    assert y.dtype == "bfloat16"
    exact = f(*jax.tree.map(oracle.wide, (w, lora)))
    assert np.abs(oracle.wide(y) - exact).max() < 0.02 * np.abs(exact).max()


@pytest.mark.multidevice(2)
def test_adapters_of_experts_on_two_devices():
    mesh = jax.make_mesh((2,), ("expert",), axis_types=(jax.sharding.AxisType.Auto,))
    x, logits = GIVEN["x"][:8], LOGITS[:8]
    gate_up = halves(GIVEN)
    lora = adapter(GIVEN, "both"), adapter(GIVEN, "down")

    def on_device(x, logits, gate_up, down, lora, **options):
        return moe.expert_mlp(x, gate_up, down, moe.route(logits, K), lora=lora, lora_scale=0.7, **options)

    P = jax.P("expert")
    spread = jax.shard_map(
        lambda *a: on_device(*a, mesh_axis="expert"), mesh=mesh, in_specs=(P,) * 5, out_specs=P
    )  # fmt: skip
    given = x, logits, gate_up, GIVEN["down"], lora
    np.testing.assert_allclose(jax.jit(spread)(*given), jax.jit(on_device)(*given), rtol=1e-12, atol=1e-12)


A, B = adapter(GIVEN, "both")
PAIR = (GIVEN["gate"], GIVEN["up"])
ERRORS = [
    (halves(GIVEN), {"lora": A}, TypeError, "expert_mlp: lora must be a pair, of gate_up and of down"),
    (halves(GIVEN), {"lora": ((A,), None)}, TypeError, r"gated_dot: lora must be None or a pair \(a, b\)"),
    (halves(GIVEN), {"lora": ((B, A), None)}, ValueError,
     r"gated_dot: lora is \(4, 2, 6\) and \(4, 5, 2\): it must be \(experts, 5, rank\) and \(experts, rank, 6\)"),
    (halves(GIVEN), {"lora": ((A[:, :, :1], B), None)}, ValueError, r"lora is \(4, 5, 1\) and \(4, 2, 6\)"),
    (PAIR, {"lora": (A, None)}, TypeError, r"gated_dot: lora must be a pair, for the gate and the up-projection"),
    (PAIR, {"lora": ((None, (A, B)), None)}, ValueError, r"gated_dot: lora\[1\] is .* rank, 3\)"),
    (PAIR, {"lora": (None, (A, B))}, ValueError, r"expert_mlp: lora\[1\] is \(4, 5, 2\)"),
    (halves(GIVEN), {"lora": ((A, B), None), "lora_scale": jnp.ones(4)}, ValueError, r"lora_scale is of shape \(4,\)"),
    (halves(GIVEN), {"lora": ((A, B), None), "quantized": True}, ValueError, "without gate, .* lora or gradients"),
]  # fmt: skip


@pytest.mark.parametrize(("gate_up", "options", "kind", "message"), ERRORS, ids=range(len(ERRORS)))
def test_errors_name_the_adapter(gate_up, options, kind, message):
    with pytest.raises(kind, match=message):
        moe.expert_mlp(GIVEN["x"], gate_up, GIVEN["down"], moe.route(LOGITS, K), **options)
