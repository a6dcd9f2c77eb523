"""Formats a caller's value for an error message."""

from typing import Any


def shown(value: Any) -> str:
    """The value as text for a message; only its type where the value would take more than a line."""
    written = repr(value)
    return written if len(written) <= 60 and "\n" not in written else f"of type {type(value).__name__}"
