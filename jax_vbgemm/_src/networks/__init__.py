"""Networks of linear layers whose parameters other libraries hold.

layers.py  the layers of a tree of parameters
api.py     networks of any shapes, one product of a list for each layer
typed.py   a network for each type of row, one ragged product for each layer
"""
