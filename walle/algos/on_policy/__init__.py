"""Algorithms that learn from each round once."""
