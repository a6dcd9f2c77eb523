"""The planners of four papers, and the planner with one tile shape for all problems."""
