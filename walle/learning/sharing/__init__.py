"""Several learners: their processes, the memory they share, and how they divide their work."""
