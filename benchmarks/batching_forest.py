"""The choice between Li's two batching heuristics: compares the paper's random forest (section 5), trained on timings
of this device, with the cost model's choice, which is the default of `Coordinated`.

\b
  experiments.py cases experiments.case             plans both batchings of 420 random batches, among others
  gpu_driver --cases experiments.case --csv …       on the GPU
  batching_forest.py experiments.plans.csv ….csv    trains and compares

Needs scikit-learn (extra `dev`). A forest that it writes (`--output`) does not:
`Coordinated(batching=Forest.read(file))`.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated, Any

import numpy as np
import typer

from candidates import Candidate, Measured
from jax_vbgemm._src.planner.papers.coordinated import HEURISTICS, Heuristic, features_of
from jax_vbgemm._src.problem import Problem, ProblemSizes, problems_of
from options import commands
from workloads import read_csv

app = commands(__doc__)

PART, SAMPLES = "batching", 420  # the paper: more than 400
TREES, DEPTH, FOLDS = 15, 8, 5  # 7-8 comparisons a tree, as the paper's


def sample(index: int) -> tuple[Problem, ...]:
    """A random batch of equal or of different sizes, like the paper's synthetic batches."""
    rng = np.random.default_rng(index)
    batch = int(rng.choice((4, 8, 16, 32, 64, 128, 256)))
    largest = np.array([rng.choice((64, 128, 256, 512)), rng.choice((64, 128, 256, 512)), 2 ** rng.integers(4, 12)])
    if rng.random() < 0.5:
        sizes = np.tile(largest, (batch, 1))
    else:
        sizes = rng.integers(np.minimum(16, largest), largest + 1, (batch, 3))
    return problems_of([tuple(row) for row in sizes.tolist()])


def workload(index: int) -> str:
    return f"{PART}_{index}"


@dataclass(frozen=True)
class Tree:
    """Nodes in depth-first order: go left where the feature is at most the threshold; leaves have feature -1."""

    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    binary: tuple[float, ...]  # the probability of binary batching

    def probability(self, features: Sequence[float]) -> float:
        node = 0
        while self.feature[node] >= 0:
            go_left = features[self.feature[node]] <= self.threshold[node]
            node = self.left[node] if go_left else self.right[node]
        return self.binary[node]


@dataclass(frozen=True)
class Forest:
    """The trees' probabilities are summed, and the more probable heuristic is taken: a `batching` for Coordinated."""

    trees: tuple[Tree, ...]

    def __call__(self, m: float, n: float, k: float, batch: int) -> Heuristic:
        binary = sum(tree.probability((m, n, k, batch)) for tree in self.trees)
        return "binary" if binary > len(self.trees) / 2 else "threshold"

    @classmethod
    def of(cls, fitted: Any) -> "Forest":
        """From scikit-learn's RandomForestClassifier, whose classes are the indices of HEURISTICS."""
        trees = []
        for each in fitted.estimators_:
            tree = each.tree_
            votes = tree.value[:, 0, :] / tree.value[:, 0, :].sum(axis=1, keepdims=True)
            binary = votes[:, list(fitted.classes_).index(1)] if 1 in fitted.classes_ else np.zeros(len(votes))
            feature = np.where(tree.children_left < 0, -1, tree.feature)
            columns = (feature, tree.threshold, tree.children_left, tree.children_right, binary)
            trees.append(Tree(*(tuple(column.tolist()) for column in columns)))
        return cls(tuple(trees))

    @classmethod
    def read(cls, file: Path) -> "Forest":
        nodes: dict[int, list[dict[str, str]]] = {}
        with file.open(newline="") as lines:
            for row in csv.DictReader(lines):
                nodes.setdefault(int(row["tree"]), []).append(row)
        kinds = {"feature": int, "threshold": float, "left": int, "right": int, "binary": float}
        return cls(
            tuple(
                Tree(*(tuple(kind(row[name]) for row in rows) for name, kind in kinds.items()))
                for rows in nodes.values()
            )
        )

    def write(self, file: Path) -> None:
        with file.open("w", newline="") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(("tree", "feature", "threshold", "left", "right", "binary"))
            for number, tree in enumerate(self.trees):
                for node in zip(tree.feature, tree.threshold, tree.left, tree.right, tree.binary, strict=True):
                    writer.writerow((number, node[0], f"{node[1]:.6g}", *node[2:4], f"{node[4]:.4g}"))


@dataclass(frozen=True)
class Comparison:
    """How often each way to choose is right, and its loss: the time of the chosen batching over that of the better
    one."""

    samples: int
    forest_right: float  # on samples that it was not trained on
    model_right: float
    forest_loss: float
    model_loss: float
    always: dict[str, float]  # heuristic -> loss if it is always taken


def train(candidates: Sequence[Candidate], times: Measured) -> tuple[Forest, Comparison]:
    """The forest trained on all samples, and how good its choice and the cost model's are. Samples are left out if both
    batchings make the same plan or take the same time within 1%.
    """
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import cross_val_predict

    rows: dict[str, dict[str, Candidate]] = {}
    for candidate in candidates:
        if candidate.part == PART:
            rows.setdefault(candidate.workload, {})[candidate.planner] = candidate
    features, seconds, predicted = [], [], []
    for name, both in rows.items():
        took = [times.us(both[heuristic]) for heuristic in HEURISTICS]
        if None in took or max(took) < 1.01 * min(took):
            continue
        features.append(features_of(ProblemSizes.of(sample(int(name.rpartition("_")[2])))))
        seconds.append(took)
        predicted.append([both[heuristic].predicted_us for heuristic in HEURISTICS])
    if len(features) < 2 * FOLDS:
        raise ValueError(f"{len(features)} samples were measured with both batchings; {2 * FOLDS} are the fewest")
    x, took, model = np.array(features), np.array(seconds), np.array(predicted).argmin(axis=1)
    best = took.argmin(axis=1)
    forest = RandomForestClassifier(TREES, max_depth=DEPTH, random_state=0)
    held_out = cross_val_predict(forest, x, best, cv=FOLDS)
    every = np.arange(len(x))

    def loss(choice: Any) -> float:
        return geometric_mean((took[every, choice] / took.min(axis=1)).tolist())

    comparison = Comparison(
        samples=len(x),
        forest_right=float((held_out == best).mean()),
        model_right=float((model == best).mean()),
        forest_loss=loss(held_out),
        model_loss=loss(model),
        always={heuristic: loss(np.full(len(x), index)) for index, heuristic in enumerate(HEURISTICS)},
    )
    return Forest.of(forest.fit(x, best)), comparison


@app.command()
def main(
    plans: Annotated[Path, typer.Argument(help="the list that `experiments.py cases` wrote")],
    measured: Annotated[list[Path], typer.Argument(help="the driver's CSV files")],
    output: Annotated[Path | None, typer.Option(help="write the forest to this file")] = None,
) -> None:
    """Trains the forest, and says how often it and the cost model are right."""
    forest, found = train(list(read_csv(Candidate, plans)), Measured(measured))
    print(
        f"{found.samples} samples; right: forest {found.forest_right:.1%} (held out), cost model "
        f"{found.model_right:.1%}; "
        f"time over the better one's: forest {found.forest_loss:.3f}, cost model {found.model_loss:.3f}, "
        + ", ".join(f"always {name} {loss:.3f}" for name, loss in found.always.items())
    )
    if output:
        forest.write(output)
        print(f"{output}: {sum(len(tree.feature) for tree in forest.trees)} nodes in {len(forest.trees)} trees")


if __name__ == "__main__":
    app()
