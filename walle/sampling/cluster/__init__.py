"""Sampling on the nodes of a Ray cluster; only `connecting` talks to Ray."""
