"""What a sampler does: act in its lanes, and fill a rollout with what happened."""
