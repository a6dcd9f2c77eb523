"""Shape files: one 'M N K' line a product."""

from __future__ import annotations

from pathlib import Path

from jax_vbgemm.problem import Problem


def parse_problems(text: str, name: str) -> tuple[Problem, ...]:
    """The problems of a shape file's text; ValueError naming file and line for one that isn't three sizes."""
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            m, n, k = map(int, line.split())
            problems.append(Problem(m, n, k))
        except ValueError as error:
            raise ValueError(f"{name}, line {number}: {line!r} is not 'M N K' ({error})") from None
    return tuple(problems)


def read_problems(file: Path) -> tuple[Problem, ...]:
    """The problems of a shape file."""
    try:
        text = file.read_text()
    except UnicodeDecodeError as error:
        raise ValueError(f"{file.name} is not a text file: {error}") from None
    return parse_problems(text, file.name)
