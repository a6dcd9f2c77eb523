"""The examples of docs/ragged.md and of the public functions' docstrings run as they stand there."""

import doctest
import importlib
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import jax_vbgemm as vb

GUIDE = Path(__file__).parents[2] / "docs" / "ragged.md"


def test_the_guides_examples_run():
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, GUIDE.name, "exec"), names)
    assert names["y"].shape == (4096, 512)


@pytest.mark.parametrize("module", ["api", "packed_api"])
def test_docstrings(module):
    with jax.enable_x64(False):
        done = doctest.testmod(
            importlib.import_module(f"jax_vbgemm.ragged.{module}"), extraglobs={"jax": jax, "jnp": jnp, "vb": vb}
        )
    assert done.attempted > 0
    assert done.failed == 0
