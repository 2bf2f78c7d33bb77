"""Sampling on the nodes of a Ray cluster; only `connection` talks to Ray."""
