"""The tiles of a plan: as runs, with split K, checked for coverage, and ordered into launches."""
