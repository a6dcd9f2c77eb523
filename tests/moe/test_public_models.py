"""The recipes of docs/guides/from_other_models.md against the formulas of their models, token by token in float64."""

import importlib.util
import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
_spec = importlib.util.spec_from_file_location("public_models", EXAMPLES / "public_models.py")
public_models = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(public_models)

TOKENS, EXPERTS, K, D, F, SHARED = 7, 16, 4, 12, 10, 5


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def softmax(x):
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def best(values, k):
    return np.argsort(-values, kind="stable")[:k]


def checkpoint(shapes, seed=0):
    """Random weights; matrices of every expert one by one under `experts.{expert}.`."""
    rng = np.random.default_rng(seed)
    names = {
        name.replace("*", str(expert)): shape
        for name, shape in shapes.items()
        for expert in range(EXPERTS if "*" in name else 1)
    }
    return {name: (rng.normal(size=shape) * 0.5).astype("float32") for name, shape in names.items()}


def softmax_of_chosen(logits):
    """Softmax, the k largest, divided by their sum: Mixtral, Qwen3, MaxText; gpt-oss has the softmax of the chosen."""
    chosen = best(logits, K)
    p = softmax(logits)[chosen]
    return chosen, p / p.sum()


def softmax_of_all(logits):
    chosen = best(logits, K)
    return chosen, softmax(logits)[chosen]


def deepseek(logits, bias):
    """Four of eight groups of experts: those of the two largest biased scores together; 2.5 times the scores' share."""
    scores = sigmoid(logits)
    groups = (scores + bias).reshape(8, -1)
    kept = best(np.sort(groups, axis=1)[:, -2:].sum(axis=1), 4)
    groups[[group for group in range(8) if group not in kept]] = -np.inf
    chosen = best(groups.reshape(-1), K)
    return chosen, 2.5 * scores[chosen] / (scores[chosen].sum() + 1e-20)


def mixture(x, route, expert):
    """The sum over each token's experts of expert(token, e) times its probability."""
    rows = []
    for token in x:
        chosen, probabilities = route(token)
        rows.append(sum(p * expert(token, e) for e, p in zip(chosen, probabilities, strict=True)))
    return np.array(rows)


def of_matrices(w, gate, up, down):
    """The experts of a checkpoint that has (out, in) matrices one by one."""

    def of(token, e):
        g, u, d = (w[f"experts.{e}.{name}.weight"] for name in (gate, up, down))
        return d @ (silu(g @ token) * (u @ token))

    return of


def of_arrays(w, gate, up, down):
    """The experts of (experts, in, out) arrays."""
    return lambda token, e: (silu(token @ w[gate][e]) * (token @ w[up][e])) @ w[down][e]


def gpt_oss_expert(w, token, e):
    both = token @ w["experts.gate_up_proj"][e] + w["experts.gate_up_proj_bias"][e]
    gate, up = np.minimum(both[::2], 7), np.clip(both[1::2], -7, 7)
    return (up + 1) * gate * sigmoid(1.702 * gate) @ w["experts.down_proj"][e] + w["experts.down_proj_bias"][e]


def transformers_5_expert(w, token, e):
    gate, up = np.split(w["experts.gate_up_proj"][e] @ token, 2)
    return w["experts.down_proj"][e] @ (silu(gate) * up)


def gemma4_logits(w, token):
    return token / np.sqrt(np.mean(token**2) + 1e-6) / np.sqrt(D) * w["router_scale"] @ w["router_logits"]


def gemma4_expert(w, token, e):
    gate, up = w["gating_einsum"][e] @ token
    return w["per_expert_scale"][e] * ((gelu(gate) * up) @ w["linear"][e])


def shared_expert(w, x):
    gate, up, down = (w[f"shared_experts.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


OUT_IN = {"experts.*.gate_proj.weight": (F, D), "experts.*.up_proj.weight": (F, D)}
OUT_IN |= {"gate.weight": (EXPERTS, D), "experts.*.down_proj.weight": (D, F)}
IN_OUT = {"router.kernel": (D, EXPERTS), "gate_proj": (EXPERTS, D, F), "up_proj": (EXPERTS, D, F)}
IN_OUT |= {"down_proj": (EXPERTS, F, D)}
QWEN = ("gate_proj", "up_proj", "down_proj")
# The recipe, its checkpoint, the names of matrices that are stacked when it is loaded, and the model's formula.
MODELS = {
    "three_ragged_dots": (
        public_models.three_ragged_dots, IN_OUT, (),
        lambda w, x: mixture(x, lambda t: softmax_of_chosen(t @ w["router.kernel"]), of_arrays(w, *QWEN)),
    ),
    "tunix_qwen3": (
        public_models.tunix_qwen3, IN_OUT, (),
        lambda w, x: mixture(x, lambda t: softmax_of_chosen(t @ w["router.kernel"]), of_arrays(w, *QWEN)),
    ),
    "maxtext": (
        public_models.maxtext,
        {"gate.kernel": (D, EXPERTS), "wi_0": (EXPERTS, D, F), "wi_1": (EXPERTS, D, F), "wo": (EXPERTS, F, D)}, (),
        lambda w, x: mixture(
            x, lambda t: softmax_of_chosen(t @ w["gate.kernel"]), of_arrays(w, "wi_0", "wi_1", "wo")
        ),
    ),
    "mixtral": (
        public_models.mixtral,
        {"gate.weight": (EXPERTS, D), "experts.*.w1.weight": (F, D), "experts.*.w2.weight": (D, F),
         "experts.*.w3.weight": (F, D)}, ("w1", "w2", "w3"),
        lambda w, x: mixture(x, lambda t: softmax_of_chosen(w["gate.weight"] @ t), of_matrices(w, "w1", "w3", "w2")),
    ),
    "qwen3_moe": (
        public_models.qwen3_moe, OUT_IN, QWEN,
        lambda w, x: mixture(x, lambda t: softmax_of_chosen(w["gate.weight"] @ t), of_matrices(w, *QWEN)),
    ),
    "qwen3_moe, norm_topk_prob=False": (
        partial(public_models.qwen3_moe, norm_topk_prob=False), OUT_IN, QWEN,
        lambda w, x: mixture(x, lambda t: softmax_of_all(w["gate.weight"] @ t), of_matrices(w, *QWEN)),
    ),
    "transformers_5": (
        public_models.transformers_5,
        {"gate.weight": (EXPERTS, D), "experts.gate_up_proj": (EXPERTS, 2 * F, D),
         "experts.down_proj": (EXPERTS, D, F)}, (),
        lambda w, x: mixture(
            x, lambda t: softmax_of_chosen(w["gate.weight"] @ t), partial(transformers_5_expert, w)
        ),
    ),
    "gpt_oss": (
        public_models.gpt_oss,
        {"router.weight": (EXPERTS, D), "router.bias": (EXPERTS,), "experts.gate_up_proj": (EXPERTS, D, 2 * F),
         "experts.gate_up_proj_bias": (EXPERTS, 2 * F), "experts.down_proj": (EXPERTS, F, D),
         "experts.down_proj_bias": (EXPERTS, D)}, (),
        lambda w, x: mixture(
            x, lambda t: softmax_of_chosen(w["router.weight"] @ t + w["router.bias"]), partial(gpt_oss_expert, w)
        ),
    ),
    "deepseek_v3": (
        public_models.deepseek_v3,
        OUT_IN | {"gate.e_score_correction_bias": (EXPERTS,), "shared_experts.gate_proj.weight": (SHARED, D),
                  "shared_experts.up_proj.weight": (SHARED, D), "shared_experts.down_proj.weight": (D, SHARED)}, QWEN,
        lambda w, x: shared_expert(w, x) + mixture(
            x, lambda t: deepseek(w["gate.weight"] @ t, w["gate.e_score_correction_bias"]), of_matrices(w, *QWEN)
        ),
    ),
    "tunix_gemma4": (
        public_models.tunix_gemma4,
        {"router_logits": (D, EXPERTS), "router_scale": (D,), "per_expert_scale": (EXPERTS,),
         "gating_einsum": (EXPERTS, 2, F, D), "linear": (EXPERTS, F, D)}, (),
        lambda w, x: mixture(x, lambda t: softmax_of_chosen(gemma4_logits(w, t)), partial(gemma4_expert, w)),
    ),
}  # fmt: skip


def layer_of(weights, stacked):
    """The weights as a recipe takes them: without those of single experts, which are stacked."""
    kept = {name: array for name, array in weights.items() if not re.match(r"experts\.\d", name)}
    return kept | {name: public_models.load_stacked(weights, name) for name in stacked}


@pytest.fixture(autouse=True)
def promotion_as_users_have_it():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("model", MODELS)
def test_a_recipe_computes_the_formula_of_its_model(model):
    recipe, shapes, stacked, formula = MODELS[model]
    weights = checkpoint(shapes)
    x = np.random.default_rng(1).normal(size=(TOKENS, D)).astype("float32")
    skewed = x + 9 * (np.arange(D) == 3)  # all tokens have nearly the same experts
    f = jax.jit(lambda x, layer: recipe(x, layer, K))
    for tokens in (x, skewed.astype("float32")):
        ours = f(tokens, layer_of(weights, stacked))
        expected = formula({name: array.astype("float64") for name, array in weights.items()}, tokens.astype("float64"))
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=2e-5 * np.abs(expected).max())
    narrow = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, "bfloat16"), (x, layer_of(weights, stacked)))
    result = jax.eval_shape(f, *narrow)
    assert (result.shape, result.dtype) == (x.shape, "bfloat16")


def copies_of_weights(f, layer):
    """The operations that make an array of all experts' matrices out of others."""
    text = jax.jit(f).lower(np.ones((3, D), "float32"), layer).as_text()
    moves = r"stablehlo\.(?:concatenate|transpose|slice|gather|convert)\b.*-> "
    return re.findall(rf"{moves}tensor<{EXPERTS}x\d+x\d+xf32>", text)


@pytest.mark.parametrize("model", [name for name in MODELS if name != "three_ragged_dots"])
def test_a_recipe_does_not_copy_the_weights(model):
    recipe, shapes, stacked, _ = MODELS[model]
    assert not copies_of_weights(lambda x, layer: recipe(x, layer, K), layer_of(checkpoint(shapes), stacked))


def test_a_copy_would_be_seen():
    def concatenated(x, layer):
        gate_up = jnp.concatenate([layer["gate_proj"], layer["up_proj"]], axis=1)
        return public_models.transformers_5(
            x, layer | {"experts.gate_up_proj": gate_up, "experts.down_proj": layer["down_proj"]}, K
        )

    assert len(copies_of_weights(concatenated, layer_of(checkpoint(OUT_IN), QWEN))) == 1


def test_ragged_dot_takes_the_place_of_that_of_jax():
    layer = layer_of(checkpoint(IN_OUT), ())
    x = np.random.default_rng(2).normal(size=(TOKENS, D)).astype("float32")
    f = jax.jit(public_models.three_ragged_dots, static_argnames=("k", "ragged_dot"))
    np.testing.assert_allclose(f(x, layer, K), f(x, layer, K, ragged_dot=jax.lax.ragged_dot), rtol=1e-4, atol=1e-4)
