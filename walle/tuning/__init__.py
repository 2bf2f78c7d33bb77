"""The search for better settings: a Hydra sweeper on Optuna.

    settings.py      every key of hydra.sweeper
    sweep.py         a search from start to end, its study in a journal, and the files it writes:
                     optimization_results.yaml, trials.csv, the best settings as an experiment
    space.py         Hydra's sweep syntax as Optuna's distributions
    optimizers.py    Optuna's samplers and pruners by their names; which running jobs to stop

It works for any Hydra application; `hydra_plugins.walle_optuna` registers it. Optuna is imported
when a search starts.
"""
