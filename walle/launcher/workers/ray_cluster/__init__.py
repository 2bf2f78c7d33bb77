"""Sweeps on a Ray cluster: workers on its nodes, which claim jobs as those of Slurm do.

    backend.py      starts the workers on free cores, ends them after Ctrl-C
    supervisor.py   an actor on a node: starts a worker's process, and ends with it
    program.py      the worker's process, and its cores: Ray counts cores without numbering them

An actor is detached: it continues without the command, and Ray starts it again on another node when
its own is lost. It runs no job itself. The worker's process is a child, as it would be of Slurm,
with the command's environment; the kernel kills it when the actor dies, and then the jobs end as
they do whenever their launcher dies. When the worker ends, the actor ends itself.
"""
