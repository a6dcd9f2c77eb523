"""Checks the machine code of the pipelined kernels: a step's warpgroup products follow each other without gaps.

A product takes its matrix descriptors from uniform registers. Where the compiler does not know that a value is the same
for all lanes, it computes descriptors in ordinary registers and moves them before each product, and the kernels take up
to 12% longer (docs/design/ragged.md). No test of results finds that.

    python tools/product_loops.py build/*/…/pipelined.cu.o build/*/…/ragged_*.cu.o

Needs cuobjdump and nvdisasm, of a CUDA toolkit or of PyPI's nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm. Exits with
1 and names the kernel where a loop has such moves, or branches there, or where a file has no loop with products.
"""

import argparse
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]+)\*/\s+(.*?);")
PRODUCTS = ("HGMMA", "QGMMA", "IGMMA")  # of 16-bit numbers and TF32, of 8-bit floats, of int8
BRANCH = re.compile(r"BRA\b.*?(0x[0-9a-f]+)")


# A step has four products; kernels that cut the last step have code for one to four, those of two 8-bit factors have
# four for each 128 columns, and those of narrow weights eight for each of two boxes. A branch between products makes
# each of them wait for the one before.
STEPS = ([4], [1, 2, 3, 4], [8], [16])


class Loop(NamedTuple):
    kernel: str
    runs: list[int]  # of products with no branch between them, in order of length
    moves: int  # to uniform registers, between one product of a run and the next


def disassembled(file: Path) -> str:
    """The file's machine code, by the tools of PyPI's packages where they are installed."""
    folder = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin"
    path = os.pathsep.join([str(folder), os.environ.get("PATH", "")])
    command = ["cuobjdump", "-sass", str(file)]
    return subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=True).stdout


def runs_of(instructions: Sequence[str]) -> tuple[list[int], int]:
    """The lengths of a loop's runs of products, and the moves within them. What comes before the first product or after
    the last one delays none."""
    runs: list[int] = []
    moves = waiting = 0
    follows = False  # a product, without a branch since
    for name in instructions:
        if name.startswith(PRODUCTS):
            moves += waiting if follows else 0
            runs = [*runs[:-1], runs[-1] + 1] if follows else [*runs, 1]
            waiting, follows = 0, True
        elif name.startswith("R2UR"):
            waiting += 1
        elif name.startswith("BRA"):
            follows = False
    return sorted(runs), moves


def loops_of(code: str) -> Iterator[Loop]:
    """The innermost loops with warpgroup products."""
    for function in code.split("Function : ")[1:]:
        kernel, _, body = function.partition("\n")
        found = [(int(m[1], 16), m[2]) for m in map(INSTRUCTION.match, body.splitlines()) if m]
        place = {address: index for index, (address, _) in enumerate(found)}
        end = 0  # of the loop before
        for index, (_, text) in enumerate(found):
            branch = BRANCH.search(text)
            begin = place.get(int(branch[1], 16), index) if branch else index
            inside = [text.split()[0] if text[0] != "@" else text.split()[1] for _, text in found[begin:index]]
            runs, moves = runs_of(inside)
            if begin < index and begin >= end and runs:
                yield Loop(kernel, runs, moves)
                end = index


def main(files: Sequence[Path]) -> int:
    faults = 0
    for file in files:
        loops = list(loops_of(disassembled(file)))
        for loop in loops:
            if loop.moves:
                print(f"{file.name}: {loop.kernel} moves {loop.moves} registers between the products of a step")
            if loop.runs not in STEPS:
                print(
                    f"{file.name}: {loop.kernel} has branches between the products of a step: {loop.runs} without one"
                )
            faults += bool(loop.moves) + (loop.runs not in STEPS)
        if not loops:
            print(f"{file.name}: no loop has warpgroup products")
            faults += 1
        print(f"{file.name}: {len(loops)} loops with warpgroup products")
    return 1 if faults else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    sys.exit(main(parser.parse_args().files))
