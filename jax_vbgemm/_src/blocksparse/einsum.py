"""`einsum` of two block-sparse tensors: an equation of labels as contracted axes and an order of free ones."""

from __future__ import annotations

from typing import NamedTuple

from jax_vbgemm._src.blocksparse.axes import Axes
from jax_vbgemm._src.util.shown import shown

NAME = "einsum"


class Equation(NamedTuple):
    """A contraction: the contracted axes of a and b, pair by pair, and the order in which the result has the free axes
    of a and those of b."""

    axes: tuple[Axes, Axes]
    order: Axes


class Labels(NamedTuple):
    """The labels of both tensors and of the result."""

    a: str
    b: str
    result: str


def labels_of(equation: object) -> Labels:
    """The labels of an equation, "ab,bc->ac". Without "->" the result has the labels that occur once, in alphabetical
    order. ValueError if it is not a contraction of two tensors, TypeError if it is not a string."""
    if not isinstance(equation, str):
        raise TypeError(f"{NAME}: equation must be a string such as 'ab,bc->ac', not {shown(equation)}")

    def refuse(why: str) -> ValueError:
        return ValueError(f"{NAME}: {equation!r}: {why}")

    left, arrow, result = equation.replace(" ", "").partition("->")
    tensors = left.split(",")
    if len(tensors) != 2:
        raise refuse(f"it names {len(tensors)} tensors, but there are two: a and b")
    for name, labels in (("a", tensors[0]), ("b", tensors[1]), ("the result", result)):
        for label in labels:
            if not (label.isascii() and label.isalpha()):
                raise refuse(f"{label!r} is not a label: labels are letters")
            if labels.count(label) > 1:
                raise refuse(f"{name} has the label {label!r} twice: traces and diagonals are not products")
    a, b = tensors
    if not arrow:
        result = "".join(sorted(set(a) ^ set(b)))
    for label in result:
        if label not in a + b:
            raise refuse(f"the result has the label {label!r}, which neither a nor b has")
        if label in a and label in b:
            raise refuse(f"a, b and the result have the label {label!r}: an axis of both tensors must be contracted")
    for name, labels, other in (("a", a, b), ("b", b, a)):
        for label in labels:
            if label not in other + result:
                raise refuse(f"{name} alone has the label {label!r}: sum over that axis first")
    return Labels(a, b, result)


def equation_of(labels: Labels) -> Equation:
    """The labels as axes."""
    a, b, result = labels
    contracted = [label for label in a if label in b]
    free = [label for label in a + b if label not in contracted]
    axes = tuple(a.index(label) for label in contracted), tuple(b.index(label) for label in contracted)
    return Equation(axes, tuple(free.index(label) for label in result))
