"""Learning: losses, returns, the trust region, Adam, compiled code, learners, replay."""
