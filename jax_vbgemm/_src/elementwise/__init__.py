"""Kernels over many arrays of any size: scaled addition, sums of squares, averages with the sums of their squares."""
