"""Mixtures of experts: from a router's logits to the sum of the experts' results, on top of `ragged_dot`.

rows.py     rows selected and summed by index, with a transpose that is again a selection
routing.py  logits to experts, group sizes and the order of rows; the auxiliary losses
layer.py    rows to their experts, gated products, and results back to their tokens
"""
