"""The products with sizes as data that ragged_time.py measures and ragged_report.py shows."""

DIRECTIONS = ("fwd", "dgrad", "wgrad")

# rows, groups, K, N; the groups' sizes are those of the workload's file.
CASES = {
    "moe_e64_k1024_t4096": (4096, 64, 1024, 1024),
    "real_decode": (256, 128, 2048, 768),
    "real_qwen3": (32768, 128, 2048, 768),
    "real_olmoe": (32768, 64, 2048, 1024),
    "real_dsv3": (16384, 32, 7168, 2048),
    "real_mixtral": (8192, 8, 4096, 14336),
    "dense_8192": (8192, 1, 8192, 8192),
}
