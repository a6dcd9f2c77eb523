"""Kernels over many arrays of any size: scaled addition, and the sum of squares of each array."""
