"""The orthogonal polar factor of every matrix of a pytree.

coefficients.py  the coefficients of steps, by name
norms.py         norms and rescalings before the first step
steps.py         the steps, with X itself or with the small Gram matrix X X^H
cost.py          predicted times: which matrices leave the batch, and which are iterated by their Gram matrices
orthogonal.py    newton_schulz
"""
