"""The plugin that Hydra finds at each start of any application; `walle.tuning` implements it."""
