"""Gather the repeats at every point of a figure; estimate means, intervals, curves, laws."""
