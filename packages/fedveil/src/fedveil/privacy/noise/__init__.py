"""Noise: exact integers on a grid to protect, fast floats to simulate."""
