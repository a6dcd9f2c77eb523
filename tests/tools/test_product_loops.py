"""tools/product_loops.py: the loops with warpgroup products in the output of cuobjdump, and their moves."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))
import product_loops


def code(*functions: tuple[str, list[str]]) -> str:
    lines = ["Fatbin elf code:"]
    for name, instructions in functions:
        lines.append(f"\t\tFunction : {name}")
        lines += [f"        /*{16 * place:04x}*/                   {text} ;" for place, text in enumerate(instructions)]
    return "\n".join(lines)


PRODUCTS = ["HGMMA.64x256x16.F32.BF16 R24, gdesc[UR20], R24"] * 4
FAST = ["MOV R1, R2", "R2UR UR20, R9", *PRODUCTS, "@!P1 BRA 0x10"]
SLOW = ["MOV R1, R2", *(["R2UR UR20, R9"] * 2), *PRODUCTS[:2], *(["R2UR UR22, R9"] * 2), *PRODUCTS[2:], "@P0 BRA 0x10"]


def test_each_loop_is_counted_alone():
    # Registers are moved before and after a step's products, and in the outer loop, over tiles, too.
    outer = [*FAST[:-1], *["R2UR UR22, R7"] * 3, FAST[-1], *["R2UR UR4, R4"] * 8, "BRA 0x0"]
    loops = list(product_loops.loops_of(code(("fast", outer), ("slow", SLOW), ("none", ["MOV R1, R2", "BRA 0x0"]))))
    assert loops == [("fast", [4], 0), ("slow", [4], 2)]


BRANCHES = ["MOV R1, R2", PRODUCTS[0], "R2UR UR20, R9", "@!P0 BRA 0x50", *PRODUCTS[1:], "@P1 BRA 0x10"]
CHUNKS = [
    "MOV R1, R2",
    *PRODUCTS[:1],
    "BRA 0xf0",
    *PRODUCTS[:3],
    "BRA 0xf0",
    *PRODUCTS[:2],
    "BRA 0xf0",
    *PRODUCTS,
    "@P1 BRA 0x10",
]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (FAST, ""),
        (CHUNKS, ""),
        (SLOW, "kernel moves 2 registers"),
        (BRANCHES, "kernel has branches between the products of a step: [1, 3]"),
        (["EXIT"], "no loop has warpgroup products"),
    ],
)
def test_moves_branches_and_missing_loops_are_faults(body, fault, monkeypatch, capsys):
    monkeypatch.setattr(product_loops, "disassembled", lambda file: code(("kernel", body)))
    assert product_loops.main([Path("ragged_bf16.cu.o")]) == bool(fault)
    assert fault in capsys.readouterr().out
