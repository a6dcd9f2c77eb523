"""Other people's programs: their independent small products as one operation."""

from jax_vbgemm.grouping.transform import group as group
