"""The launcher of sweeps: one process a job, cores of its own for each job, sweeps that resume.

    settings.py      every key of hydra.launcher
    launch.py        a launch from start to end
    planning.py      which jobs run, in which order, which are complete, which are refused
    composing.py     the jobs' configs
    identity.py      recognises a job by its config
    allocation.py    the cores, GPUs and threads of a sweep: what each job needs and gets
    machine_check.py how fast and how quiet the cores are
    runner.py        the loop that starts jobs, waits for their ends, stops them
    jobs/            the processes: the fork server, a job's supervisor, the job
    workers/         where jobs run: here, or in workers that Slurm or Ray starts elsewhere
    records.py       manifest.json and index.csv
    locks.py         one launcher a directory
    screen.py        the table on a terminal, or plain lines
    messages.py      how jobs ended, in words

It works for any Hydra application, and imports nothing of `walle` but what every room knows;
`hydra_plugins.walle_launcher` registers it.
"""
