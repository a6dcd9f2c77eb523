"""Other people's programs: their independent small products as one operation."""

from jax_vbgemm._src.grouping.transform import group as group
