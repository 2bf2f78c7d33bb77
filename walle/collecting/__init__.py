"""The work of a sampler: it acts in its lanes and fills a rollout."""
