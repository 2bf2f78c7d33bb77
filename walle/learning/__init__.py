"""Learning: losses, returns, trust region, Adam, replay, steps in PyTorch and C++, learners."""
