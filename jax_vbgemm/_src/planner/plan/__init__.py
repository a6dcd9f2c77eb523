"""The plan that a planner returns: drafted, validated, printed."""
