"""Mixtures of experts: from a router's logits to the sum of the experts' results, on top of `ragged_dot`.

routing.py  from logits to experts, group sizes and the order of rows; the auxiliary losses
layer.py    dispatches rows to experts, multiplies, and combines the results for each token
"""
