"""Measured times that can be compared: the order of jobs, and how fast and how quiet cores are."""
