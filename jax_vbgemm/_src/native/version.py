"""The version of this package; plugins have the same."""

__version__ = "0.2.0"
