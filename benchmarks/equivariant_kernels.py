"""Where a step of nequix or mace-jax spends its time on a GPU: the kernels of each part of the network.

The parts are name scopes around the network's functions; a kernel counts for the part of most of the operations that
XLA fused into it. Command buffers are off, as their kernels don't tell which operation they belong to.

\b
    python benchmarks/equivariant_kernels.py nequix forces
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.table import Table

from jax_vbgemm import irreps
from options import commands, one_of
from profiled import kernels
from workloads import write_csv

PROGRAMS = ("nequix", "mace")
REST = "rest"


@dataclass
class Row:
    """A line of the CSV: the kernels of one part of the network."""

    program: str
    step: str
    variant: str
    part: str
    us: float
    share: float
    kernels: float
    device: str
    jax: str


def name_parts(program: str) -> None:
    """Puts the network's functions into name scopes, and those of this package that stand in for them."""
    ours = [(irreps.TensorProduct, "__call__", "tensor product"), (irreps.LinearMap, "__call__", "linear maps"),
            (irreps.SymmetricContraction, "__call__", "symmetric contraction")]  # fmt: skip
    parts: list[tuple[Any, str, str]]
    if program == "nequix":
        import e3nn_jax
        from nequix import model

        # A product of features and weights is a tensor product with scalars in e3nn.
        parts = [
            (e3nn_jax, "tensor_product", "tensor product"), (e3nn_jax.IrrepsArray, "__mul__", "radial weights"),
            (e3nn_jax, "scatter_sum", "sum over edges"), (model.MLP, "__call__", "radial network"),
            (model.RMSLayerNorm, "__call__", "norms"), (e3nn_jax, "gate", "gates"),
            (e3nn_jax.equinox.Linear, "__call__", "linear maps"),
        ]  # fmt: skip
    else:
        from mace_jax.adapters import cuequivariance as adapters
        from mace_jax.adapters.e3nn import nn
        from mace_jax.modules import blocks

        parts = [
            (adapters.TensorProduct, "__call__", "tensor product"), (blocks, "scatter_sum", "sum over edges"),
            (nn.FullyConnectedNet, "__call__", "radial network"), (adapters.Linear, "__call__", "linear maps"),
            (adapters.FullyConnectedTensorProduct, "__call__", "linear maps"),
            (adapters.SymmetricContraction, "__call__", "symmetric contraction"),
        ]  # fmt: skip
    for owner, name, part in [*ours, *parts]:
        setattr(owner, name, _scoped(getattr(owner, name), part.replace(" ", "_")))


def _scoped(function: Callable[..., Any], scope: str) -> Callable[..., Any]:
    def scoped(*args: Any, **options: Any) -> Any:
        with jax.named_scope(f"part.{scope}"):
            return function(*args, **options)

    return scoped


def parts_of(text: str) -> dict[str, str]:
    """For each instruction of a compiled program, the part of most operations in it; names have underscores alone."""
    part: dict[str, str] = {}
    inside: dict[str, Counter[str]] = defaultdict(Counter)  # of each computation
    called: dict[str, str] = {}
    computation = ""
    for line in text.splitlines():
        if header := re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{\s*$", line):
            computation = header[1]
        elif found := re.match(r"\s*(?:ROOT )?%?([\w.\-]+) = ", line):
            scopes = re.findall(r"part\.(\w+)", (re.search(r'op_name="([^"]*)"', line) or [""])[0])
            part[found[1]] = scopes[-1] if scopes else REST
            if "op_name" in line:
                inside[computation][part[found[1]]] += 1
            if fusion := re.search(r"calls=%?([\w.\-]+)", line):
                called[found[1]] = fusion[1]
    for name, target in called.items():
        if part[name] == REST and inside[target]:
            part[name] = inside[target].most_common(1)[0][0]
    return {re.sub(r"\W", "_", name): of for name, of in part.items()}


def kernels_by_part(compiled: Any, args: Any, calls: int = 5) -> dict[str, tuple[float, float]]:
    """Microseconds and the number of kernels of one call, by part."""
    part = parts_of(compiled.as_text())
    us: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for event in kernels(compiled, *args, calls=calls):
        name = str({key: value for key, value in event.stats if key}.get("hlo_op", event.name))
        of = part.get(re.sub(r"\W", "_", name), REST)
        us[of] += event.duration_ns / calls / 1e3
        count[of] += 1
    return {of: (us[of], count[of] / calls) for of, _ in us.most_common()}


def show(rows: list[Row]) -> None:
    table = Table(title="kernels of one step by part")
    for column in ("program", "step", "variant", "part", "us", "share", "kernels"):
        table.add_column(column)
    for row in rows:
        table.add_row(row.program, row.step, row.variant, row.part, f"{row.us:.0f}", f"{row.share:.2f}",
                      f"{row.kernels:.0f}")  # fmt: skip
    Console(width=120).print(table)


app = commands(__doc__)


@app.command()
def main(
    program: Annotated[str, typer.Argument(help=", ".join(PROGRAMS), callback=one_of(PROGRAMS))],
    step: Annotated[str, typer.Argument(help="forces or training", callback=one_of(("forces", "training")))],
    variant: Annotated[str, typer.Option(help="before, or a variant of whole_programs_real.py")] = "before",
    size: Annotated[str, typer.Option(help="as of whole_programs.py")] = "gpu",
    csv: Annotated[Path | None, typer.Option(help="rows are appended")] = None,
) -> None:
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_enable_command_buffer="
    import whole_programs_real

    case = next(case for case in getattr(whole_programs_real, program)(size) if case.step == step)
    name_parts(program)
    functions: Mapping[str, Any] = {"before": case.before, **case.variants}
    found = kernels_by_part(jax.jit(functions[variant]).lower(*case.args).compile(), case.args)
    total = sum(us for us, _ in found.values())
    where = jax.devices()[0].device_kind, jax.__version__
    rows = [Row(program, step, variant, of, us, us / total, count, *where) for of, (us, count) in found.items()]
    if csv:
        write_csv(csv, rows)
    show(rows)


if __name__ == "__main__":
    app()
