"""A model of the costs of a run, which predicts runs with other numbers of processes."""
