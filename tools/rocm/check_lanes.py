"""Compares the places of elements in MFMA fragments, as kernels and emulation have them, with AMD's own tables.

    python tools/rocm/check_lanes.py .../amd_matrix_instruction_calculator/matrix_calculator.py

The calculator (github.com/ROCm/amd_matrix_instruction_calculator; it needs the package tabulate) prints, for an
instruction, which elements of A, B and D each lane holds.
"""

import re
import subprocess
import sys

INSTRUCTIONS = [  # architecture, instruction, elements of A (B) a lane, bytes of a sum
    ("cdna2", "v_mfma_f32_16x16x4f32", 1, 4),
    ("cdna3", "v_mfma_f32_16x16x4_f32", 1, 4),
    ("cdna2", "v_mfma_f64_16x16x4f64", 1, 8),
    ("cdna3", "v_mfma_f64_16x16x4_f64", 1, 8),
    ("cdna2", "v_mfma_f32_16x16x16f16", 4, 4),
    ("cdna3", "v_mfma_f32_16x16x16_f16", 4, 4),
    ("cdna2", "v_mfma_f32_16x16x16bf16_1k", 4, 4),
    ("cdna3", "v_mfma_f32_16x16x16_bf16", 4, 4),
    ("cdna3", "v_mfma_f32_16x16x8_xf32", 2, 4),
]


def expected(matrix: str, lane: int, each: int, sum_bytes: int) -> list[tuple[int, int]]:
    """(row, column) of a lane's elements."""
    group, i = divmod(lane, 16)
    if matrix == "D":
        return [(4 * r + group if sum_bytes == 8 else 4 * group + r, i) for r in range(4)]
    depths = range(each * group, each * group + each)
    return [(i, k) if matrix == "A" else (k, i) for k in depths]


def main(calculator: str) -> int:
    wrong = 0
    for arch, instruction, each, sum_bytes in INSTRUCTIONS:
        lanes = 0
        for matrix in "ABD":
            command = [sys.executable, calculator, "-a", arch, "-i", instruction, "-M", f"-{matrix}", "--csv"]
            for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
                if re.match(r"\d+,", line):
                    found = [(int(row), int(col)) for row, col in re.findall(r"\[(\d+)\]\[(\d+)\]", line)]
                    wrong += found != expected(matrix, int(line.split(",")[0]), each, sum_bytes)
                    lanes += 1
        wrong += lanes != 3 * 64
        print(f"{arch} {instruction}: {lanes} lanes, {wrong} wrong so far")
    return wrong


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1]), 1))
