"""`group`: turns the independent small products of a traced function into one operation."""

from jax_vbgemm._src.grouping.transform import group as group
