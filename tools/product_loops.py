"""Checks the machine code of the pipelined kernels: a step's warpgroup products follow each other without gaps.

A product takes its matrix descriptors from uniform registers. Where the compiler does not know that a value is the same
for all lanes, it computes descriptors in ordinary registers and moves them before each product, and the kernels take up
to 12% longer (docs/design/ragged.md). No test of results finds that.

    python tools/product_loops.py build/*/…/pipelined.cu.o build/*/…/ragged_*.cu.o

Needs cuobjdump and nvdisasm, of a CUDA toolkit or of PyPI's nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm. Exits with
1 and names the kernel where a loop has such moves, or where a file has no loop with products.
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
BRANCH = re.compile(r"BRA\b.*?(0x[0-9a-f]+)")


class Loop(NamedTuple):
    kernel: str
    products: int
    moves: int  # to uniform registers, between one product and the next


def disassembled(file: Path) -> str:
    """The file's machine code, by the tools of PyPI's packages where they are installed."""
    folder = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13" / "bin"
    path = os.pathsep.join([str(folder), os.environ.get("PATH", "")])
    command = ["cuobjdump", "-sass", str(file)]
    return subprocess.run(command, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=True).stdout


def moves_between_products(instructions: Sequence[str]) -> int:
    """What comes before the first product or after the last one, or where a branch leads elsewhere, delays none."""
    moves = waiting = 0
    follows = False  # a product, without a branch since
    for name in instructions:
        if name.startswith("HGMMA"):
            moves += waiting if follows else 0
            waiting, follows = 0, True
        elif name.startswith("R2UR"):
            waiting += 1
        elif name.startswith("BRA"):
            follows = False
    return moves


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
            products = sum(word.startswith("HGMMA") for word in inside)
            if begin < index and begin >= end and products:
                yield Loop(kernel, products, moves_between_products(inside))
                end = index


def main(files: Sequence[Path]) -> int:
    faults = 0
    for file in files:
        loops = list(loops_of(disassembled(file)))
        for loop in loops:
            if loop.moves:
                print(f"{file.name}: {loop.kernel} moves {loop.moves} registers between {loop.products} products")
                faults += 1
        if not loops:
            print(f"{file.name}: no loop has warpgroup products")
            faults += 1
        print(f"{file.name}: {len(loops)} loops with warpgroup products")
    return 1 if faults else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    sys.exit(main(parser.parse_args().files))
