"""8-bit numbers with scales.

scaled.py      Scaled: values and the scales of their blocks
blocks.py      the definition of blocks with scales, and the primitive that is one kernel on a GPU
quantize.py    quantize: from floating-point numbers to Scaled
"""
