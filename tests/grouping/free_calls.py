"""A CPU on which a call of two small products is faster than two dots, so that tests can use few and small ones."""

import dataclasses

import jax
import numpy as np

import jax_vbgemm as vb
from jax_vbgemm._src.planner import device_spec
from jax_vbgemm._src.planner.tables.rules import CallCosts

FREE_CALLS = dataclasses.replace(
    device_spec("cpu"),
    calls=CallCosts(None, array=0.0, copy=0.0, clear_gain=1.0, least_gain=0.0, block=0.0, element=0.0, small_bytes=0),
    dots=dataclasses.replace(device_spec("cpu").dots, bare_launch=None, inlined=0),
)  # fmt: skip


def calls(function, *args, device=FREE_CALLS):
    """(calls of kernels, dots) of a program."""
    with vb.target(device):
        text = jax.jit(function).lower(*args).as_text()
    return text.count("custom_call @vbgemm_v2"), text.count("stablehlo.dot_general")


def assert_close(ours, plain, rtol=1e-9):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-11), ours, plain)
