"""The papers' GPUs, and the shapes and tiles from which the tests of the tall-and-skinny model draw."""

from hypothesis import strategies as st

from jax_vbgemm._src.planner import device_spec
from jax_vbgemm._src.planner.model.tall_skinny_model import Gpu

# The paper's GPUs, with the figures of the device table: the paper prints neither latencies nor C.
V100, K40C, M40, P100 = (Gpu.of(device_spec(name)) for name in ("v100", "k40c", "m40", "p100"))
H100 = Gpu.of(device_spec("h100"))
BYTES = {"float32": 4, "float64": 8, "complex64": 8, "complex128": 16, "bfloat16": 2, "float16": 2}

# Ten units. A unit has 1000 byte/s and needs 1000 bytes in flight; it has 200 FLOP/s and needs 20 FLOP in flight.
ROUND = Gpu(
    name="round", units=10, peak_rates=(("float32", 2000.0), ("float64", 2000.0)), bandwidth=10000.0,
    memory_latency=1.0, product_latency=0.1, max_threads=1000, registers=10000, shared_bytes=10000, setup_registers=10,
)  # fmt: skip

gpus = st.sampled_from((K40C, M40, P100, V100, H100, Gpu.of(device_spec("mi300x"))))
dtypes = st.sampled_from(tuple(BYTES))
tiles = st.integers(1, 40)
rows = st.sampled_from((1, 100, 1024, 10240, 30720, 10**6))
columns = st.integers(1, 40)
depths = st.sampled_from((1, 8, 16, 300, 10240))
problems = st.tuples(rows, columns, depths)
