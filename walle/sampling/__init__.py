"""Transfer of rollouts and policies between the samplers and the agent."""
