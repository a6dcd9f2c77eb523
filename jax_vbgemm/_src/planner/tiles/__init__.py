"""Tiles: how problems are cut into them, laid out as runs, split over K, covered, launched."""
