"""The data of docs/experiments.md: plans and their times, and the peers' times."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import geometric_mean

from candidates import Candidate, Measured, Table, tabulate
from figures import by_title, cold, fastest
from jax_vbgemm._src.planner import DeviceSpec
from report import table
from workloads import Row, read_csv


@dataclass(frozen=True)
class Data:
    """The plans, their times, and the peers' times on the same workloads.

    Without measurements the times are those that the cost model predicts, and `measured` is false.
    """

    every: Sequence[Candidate]
    times: Measured
    peers_file: Path
    device: DeviceSpec

    @property
    def measured(self) -> bool:
        return bool(self.times.times)

    def table(self, *parts: str, precision: str = "fp32") -> Table:
        """Workload -> planner -> microseconds."""
        mine = [c for c in self.every if c.part in parts and c.precision == precision]
        if self.measured:
            return tabulate(mine, self.times)
        found: Table = {}
        for candidate in mine:
            found.setdefault(candidate.workload, {})[candidate.planner] = candidate.predicted_us
        return found

    @cached_property
    def peers(self) -> dict[str, dict[tuple[str, str], float]]:
        """Title -> (workload, precision) -> microseconds, of the grids and inception."""
        return by_title(cold(read_csv(Row, self.peers_file)))

    @cached_property
    def skinny_peers(self) -> dict[str, dict[tuple[str, str], float]]:
        """As `peers`, for cuBLAS in either storage order and TSM2X, on tall and skinny products."""
        rows = [row for row in read_csv(Row, self.peers_file) if row.group in ("ism2", "tsm2") and row.nbad == 0]
        kinds = {"cuBLAS": "cublas_loop", "TSM2X, released code": "tsm2x"}
        return {title: fastest(row for row in rows if row.peer.startswith(start)) for title, start in kinds.items()}

    def over_peer(self, table: Table, planner: str, title: str, precision: str = "fp32") -> list[float]:
        times = self.peers.get(title, {})
        return [
            times[name, precision] / row[planner]
            for name, row in table.items()
            if planner in row and (name, precision) in times
        ]

    def peers_over_peer(self, faster: str, slower: str, table: Table, precision: str = "fp32") -> list[float]:
        """The speedup of one peer over another on the table's workloads that both have."""
        ours, theirs = self.peers.get(faster, {}), self.peers.get(slower, {})
        cases = ((name, precision) for name in table)
        return [theirs[case] / ours[case] for case in cases if case in ours and case in theirs]


def times(values: Sequence[float], count: bool = True) -> str:
    """The geometric mean as text, with the number of values."""
    if not values:
        return "-"
    return f"{geometric_mean(values):.2f}x" + (f" ({len(values)})" if count else "")


def claims(rows: Iterable[tuple[str, str, Sequence[float]]]) -> list[str]:
    return table(("", "paper", "ours"), ((what, paper, times(values)) for what, paper, values in rows))
