"""Tall and skinny problems for property tests."""

from hypothesis import strategies as st

import jax_vbgemm as vb

# Small dimensions that fill a tile and that don't.
small = st.sampled_from((1, 2, 3, 5, 7, 8, 12, 16, 24, 31, 32, 40))
tall = st.builds(vb.Problem, m=st.integers(1, 1500), n=small, k=st.one_of(small, st.sampled_from((700, 1024))))
