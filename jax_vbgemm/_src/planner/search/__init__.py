"""The planners of `auto`: by predicted makespan, over a CPU's cores, and what was measured."""
