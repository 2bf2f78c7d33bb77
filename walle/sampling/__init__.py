"""How rollouts and policies travel between the samplers and the agent."""
