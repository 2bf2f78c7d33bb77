"""Sampling on the nodes of a Ray cluster; only `connecting` imports Ray, and only when asked."""
