"""The launcher of sweeps: one process and separate cores for each job, sweeps that resume.

    settings.py      every key of hydra.launcher
    launch.py        a launch from start to end: which jobs run, which are complete or refused
    planning.py      the plan: the jobs' configs, numbers and order, settings of single choices
    allocation.py    the cores, GPUs and threads of a sweep: what each job needs and gets
    runner.py        the loop that starts, watches and ends jobs; how fast and quiet the cores are
    jobs.py          the processes: the fork server, a job's supervisor, the job, and how it ended
    workers/         where jobs run: here, or in workers that Slurm or Ray starts elsewhere
    records.py       a sweep's directory: locks, manifest.json and index.csv, progress
    screen.py        the table on a terminal, or plain lines

It works for any Hydra application, and imports only the shared modules of `walle`;
`hydra_plugins.walle_launcher` registers it.
"""
