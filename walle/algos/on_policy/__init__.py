"""Algorithms that learn from each round and then drop it."""
