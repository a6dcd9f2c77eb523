"""8-bit numbers with scales.

scaled.py      Scaled: values and the scales of their blocks
quantize.py    quantize: from floating-point numbers to Scaled
"""
