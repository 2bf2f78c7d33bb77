"""The agent: its loop, evaluation, metrics, progress, checkpoints and the run's directory."""
