"""Mixtures of experts: from a router's logits to the sum of the experts' results, on top of `ragged_dot`.

scores.py   the scores of a router, and the experts of the best ones
routing.py  from logits to experts, group sizes and the order of rows
losses.py   the auxiliary losses, and a bias that balances experts without one
lora.py     low-rank adapters of the experts' weights
quantized.py  the experts' products in 8 bits
gated.py    the gated product
layer.py    dispatches rows to experts, multiplies, and combines the results for each token
"""
