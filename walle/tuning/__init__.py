"""The search for better settings: a Hydra sweeper on Optuna.

    settings.py      every key of hydra.sweeper
    sweep.py         a search from start to end: checks, asks for settings, launches, records
    space.py         Hydra's sweep syntax as Optuna's distributions
    optimizers.py    Optuna's samplers and pruners by their names
    study.py         the study in its journal, which several launchers may share
    pruning.py       reads eval.csv of running jobs, and decides which trials to stop
    results.py       optimization_results.yaml, trials.csv, the best settings as an experiment

It works for any Hydra application; `hydra_plugins.walle_optuna` registers it. Optuna is imported
when a search starts.
"""
