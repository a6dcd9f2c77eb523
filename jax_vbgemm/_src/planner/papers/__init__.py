"""The planners of the four papers, and one tile for all."""
