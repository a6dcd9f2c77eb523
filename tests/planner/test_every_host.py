"""Plans do not depend on the CPU on which they are made."""

import os
import subprocess
import sys

import pytest

PLANS = """
import hashlib, random
from jax_vbgemm._src.planner import Auto, catalogue_for, device_spec
from jax_vbgemm._src.problem import Problem

rng = random.Random(7)
for _ in range(60):
    count, scale = rng.choice([2, 4, 8, 17, 40, 64, 200]), rng.choice([1, 8, 16, 32])
    shapes = [[rng.randint(1, 64) * scale for _ in range(3)] for _ in range(count)]
    device, kind = device_spec(rng.choice(["h100", "a100", "mi210", "mi300x"])), rng.choice(["float32", "bfloat16"])
    plan = Auto()(tuple(Problem(*shape) for shape in shapes), device, catalogue_for(kind, device))
    columns = b"".join(getattr(plan.runs, name).tobytes() for name in plan.runs.__dataclass_fields__)
    print(device.name, kind, hashlib.md5(columns).hexdigest(), plan.predicted_seconds.hex())
"""


@pytest.mark.slow
def test_plans_do_not_depend_on_the_core_that_a_blas_is_chosen_for():
    def plans(core: str) -> str:
        environment = os.environ | {"OPENBLAS_CORETYPE": core, "JAX_PLATFORMS": "cpu"}
        return subprocess.run(
            [sys.executable, "-c", PLANS], env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert plans("Haswell") == plans("Prescott")
