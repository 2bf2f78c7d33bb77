"""A Hydra launcher for measuring: one process a job, cores handed out, sweeps that resume."""
