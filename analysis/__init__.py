"""Rebuilds the papers' curves, with uncertainty, from the files that runs write."""
