"""The search for the plan of least predicted makespan."""
