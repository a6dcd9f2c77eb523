"""The levels of products: after their operands, before their users, with few levels and a bound on living bytes."""

import dataclasses
import random
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from free_calls import FREE_CALLS, calls

import jax_vbgemm as vb
from jax_vbgemm._src.grouping.decisions import Decider
from jax_vbgemm._src.grouping.dots import dot_of
from jax_vbgemm._src.grouping.levels import place, place_early
from jax_vbgemm._src.grouping.program import Program
from jax_vbgemm._src.grouping.sums import DotSum
from jax_vbgemm._src.planner import resolve_planner


def random_program(seed):
    """A function of square matrices of three sizes: products, sums and maxima of random earlier values of a size, and
    products that no other uses. Its values are small integers, so that each order of additions gives the same bits."""

    def function(*xs):
        draw = random.Random(seed)
        values = [[x] for x in xs]
        for _ in range(24):
            size = draw.randrange(len(values))
            # mostly the last values, so that there are long chains, and sometimes the first, so that there is slack
            x, y, z = (values[size][-1 if draw.random() < 0.5 else draw.randrange(len(values[size]))] for _ in range(3))
            product = jnp.clip(x @ y, -3, 3)
            other = draw.choice(values)[-1][0, 0]  # of another size
            values[size].append(draw.choice([product, product + z, jnp.maximum(product, z), product + other]))
        unused = [draw.choice(each) @ draw.choice(each) for each in values * 3]
        return unused, [x for each in values for x in each[1:] if x is each[-1] or draw.random() < 0.3]

    rng = np.random.default_rng(seed)
    return function, [jnp.asarray(rng.integers(-2, 3, (n, n)), jnp.float64) for n in (2, 3, 5)]


def placed(function, args, live_bytes):
    """A program with levels, the kinds of its products (by the size of their result, of which two can join), and the
    products on each path to and from each of them."""
    program = Program(jax.make_jaxpr(function)(*args))
    kinds = {
        id(node): node.eqn.outvars[0].aval.shape[0] > 2
        for node in program.nodes
        if node.eqn.primitive.name == "dot_general"
    }
    place(program, kinds, live_bytes)
    return program, kinds


def earliest_and_latest(program, kinds):
    """For each product, the length of the longest path to it, and that of the program's longest without that from it,
    in products."""
    before, after = Counter(), Counter()
    earliest, latest = {}, {}
    for node in program.nodes:
        depth = max((before[value] for value in node.values()), default=0)
        earliest[id(node)] = depth
        before.update(dict.fromkeys(node.outputs.values(), depth + (id(node) in kinds)))
    for node in reversed(program.nodes):
        height = max((after[value] for value in node.outputs.values()), default=0) + (id(node) in kinds)
        latest[id(node)] = max(before.values()) - height
        for value in node.values():
            after[value] = max(after[value], height)
    return earliest, latest


def most_alive(program, level_of):
    """The largest number of bytes of computed values on a level: those made until then and used then or later."""
    end = max(level_of.values()) + 1
    made = {value: level_of[id(node)] for node in program.nodes for value in node.outputs.values()}
    used = dict(made)
    for node in program.nodes:
        for value in node.values():
            if value in used:
                used[value] = max(used[value], level_of[id(node)])
    used |= {value: end for value in program.outputs if value in used}
    return max(sum(program.bytes[x] for x in made if made[x] <= level <= used[x]) for level in range(end + 1))


@pytest.mark.parametrize("live_bytes", [0, 150, 2**28])
def test_products_are_between_operands_and_users_and_operands_wait_within_the_bound(live_bytes):
    moved = 0
    for seed in range(25):
        program, kinds = placed(*random_program(seed), live_bytes)
        earliest, latest = earliest_and_latest(program, kinds)
        ready = dict.fromkeys((*program.inputs, *program.known), 0)
        for node in program.nodes:
            assert all(ready[value] <= node.level for value in node.values())
            if id(node) in kinds:
                assert earliest[id(node)] <= node.level <= latest[id(node)]
                moved += node.level > earliest[id(node)]
            ready.update(dict.fromkeys(node.outputs.values(), node.level + (id(node) in kinds)))
        levels = {id(node): node.level for node in program.nodes}
        assert most_alive(program, levels) <= most_alive(program, earliest) + live_bytes
        again, _ = placed(*random_program(seed), live_bytes)
        assert [node.level for node in again.nodes] == [node.level for node in program.nodes]
    assert moved > (75 if live_bytes else 25)


def test_values_are_those_of_the_program_without_group():
    programs = [random_program(seed) for seed in range(6)]
    functions = [f for f, _ in programs] + [vb.group(f, live_bytes=b) for b in (0, 150, 2**28) for f, _ in programs]
    args = [x for _, x in programs] * 4
    results = jax.jit(lambda args: [f(*x) for f, x in zip(functions, args, strict=True)])(args)
    for plain, *ours in zip(*(results[i : i + 6] for i in range(0, 24, 6)), strict=True):
        for each in ours:
            jax.tree.map(np.testing.assert_array_equal, each, plain)
    assert any(calls(f, *x)[0] for f, x in zip(functions[6:], args[6:], strict=True))


def test_products_stay_early_where_that_is_predicted_to_be_faster():
    """As where a call has to gain so much that a level that a product leaves becomes dots."""
    calls_cost = dataclasses.replace(FREE_CALLS.calls, least_gain=4e-6)
    device, chosen = dataclasses.replace(FREE_CALLS, calls=calls_cost), set()
    for seed in range(12):
        function, args = random_program(seed)
        program = Program(jax.make_jaxpr(function)(*args))
        found = [
            (node, dot_of(node.eqn, ["float64"], calls_cost))
            for node in program.nodes
            if node.eqn.primitive.name == "dot_general"
        ]
        sums = {id(node): DotSum(node, (dot,), (node,)) for node, dot in found}
        decider = Decider(program, sums, {}, device, resolve_planner("auto"))
        seconds = lambda decisions: sum(each.split.seconds for each in decisions)  # noqa: E731
        kinds = {key: each.kind for key, each in sums.items()}
        place_early(program, kinds)
        early = seconds(decider.on_levels())
        place(program, kinds, 2**28)
        joined = seconds(decider.on_levels())
        assert seconds(decider.decide(2**28)) == min(early, joined)
        assert [each.level for each in decider.on_levels()] == [each.level for each in decider.decide(2**28)]
        chosen.add(np.sign(joined - early))
    assert {-1, 1} <= chosen


def tower(layers, n):
    def loss(weights, x):
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.sum(x)

    return jax.grad(loss), ([jnp.ones((n, n))] * layers, jnp.ones((4, n)))


def test_all_weight_gradients_are_one_call_and_the_chain_stays_dots():
    gradient, args = tower(12, 8)
    assert calls(vb.group(gradient), *args) == (1, 23)


def test_a_bound_divides_the_call():
    gradient, args = tower(12, 8)
    row = 4 * 8 * 8  # bytes of an activation or its gradient; the next to last wait for nothing
    program = Program(jax.make_jaxpr(gradient)(*args))
    dots = {id(node): 0 for node in program.nodes if node.eqn.primitive.name == "dot_general"}
    sizes = {}
    for waiting in (0, 4, 8, 30):
        place(program, dots, waiting * row)
        levels = Counter(node.level for node in program.nodes if id(node) in dots)
        sizes[waiting] = sorted((count - 1 for count in levels.values() if count > 2), reverse=True)
    assert sizes[0] == []
    assert len(sizes[4]) > len(sizes[8]) > len(sizes[30]) == 1
    assert max(sizes[4]) <= 4 < max(sizes[8]) <= 8


def test_products_that_only_the_start_holds_back_run_together_there():
    """As the keys and values of all layers of a decoder, which attends to one encoder."""

    def decoder(x, memory, weights):
        for w in weights:
            x = jnp.tanh(x @ (memory @ w))
        return x

    args = jnp.ones((8, 8)), jnp.ones((8, 8)), [jnp.ones((8, 8))] * 6
    assert calls(vb.group(decoder), *args) == (1, 6)


def test_nothing_waits_for_large_products():
    def function(x, big, weights):
        alone = x @ x
        for w in weights:
            x = jnp.tanh(x @ w)
        wide = jnp.pad(x, ((0, len(big) - len(x)), (0, len(big) - len(x))))
        return alone, wide @ big, wide @ big.T

    small, big = jnp.ones((8, 8)), jnp.ones((600, 600))
    assert calls(vb.group(function), small, big, [small] * 3) == (1, 4)


def test_a_loop_waits_for_one_of_its_kind(capsys):
    x, w = jnp.ones((4, 4)) / 8, jnp.ones((3, 3, 4, 4)) / 8

    def two(x, w):
        step = lambda c, w: (jnp.tanh(c @ w), None)  # noqa: E731
        return jax.lax.scan(step, x, w[0])[0] + jax.lax.scan(step, jnp.tanh(x @ w[2, 0]), w[1])[0]

    with vb.target(FREE_CALLS):
        found = jax.jit(vb.group(two, explain=True))(x, w)
    np.testing.assert_allclose(found, two(x, w), rtol=1e-5)
    assert "2 scans" in capsys.readouterr().out
