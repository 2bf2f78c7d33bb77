"""What was learned, for use: policies that act, their environments, evaluations and videos."""
