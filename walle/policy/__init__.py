"""Trained policies in use: acting, their environments, evaluations and videos."""
