"""Command-line options that several benchmarks share; a mistake in an option gives a one-line message."""

from collections.abc import Callable, Collection
from typing import Annotated, Any

import typer

from jax_vbgemm._src.planner import PLANNERS, device_spec
from workloads import PRECISIONS, expand, problems_named


def commands(doc: str | None) -> typer.Typer:
    """An app whose help is a module's docstring; lines after a line with \\b are not wrapped."""
    return typer.Typer(
        help=doc, rich_markup_mode=None, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False
    )


def checked(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A callback that turns a ValueError of `convert` into the message about the option."""

    def callback(given: Any) -> Any:
        try:
            return convert(given)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return callback


def one_of(known: Collection[str]) -> Callable[[Any], Any]:
    """A callback for an option that is one of these names, or a list of them."""

    def convert(given: Any) -> Any:
        for name in [given] if isinstance(given, str) else given or ():
            if name not in known:
                raise ValueError(f"unknown name {name!r}; known are {', '.join(known)}")
        return given

    return checked(convert)


def known_workloads(names: list[str]) -> list[str]:
    found = expand(names)
    for name in found:
        problems_named(name)
    return found


Workloads = Annotated[
    list[str], typer.Argument(help="names; 'grids' or patterns with *", callback=checked(known_workloads))
]
Precision = Annotated[str, typer.Option(help=", ".join(PRECISIONS), callback=one_of(PRECISIONS))]
Precisions = Annotated[
    list[str], typer.Option("--precision", help=f"any of {', '.join(PRECISIONS)}", callback=one_of(PRECISIONS))
]
Planners = Annotated[
    list[str], typer.Option("--planner", help=f"any of {', '.join(PLANNERS)}", callback=one_of(PLANNERS))
]
Device = Annotated[
    str, typer.Option("--device", help="that the plans are made for", callback=checked(lambda x: device_spec(x).name))
]
