"""The launcher of sweeps: one process a job, cores of its own for each job, sweeps that resume.

    settings.py     every key of hydra.launcher
    launch.py       a launch from start to end
    planning.py     decides which jobs run, which are complete, which are refused
    composing.py      the jobs' configs
    identity.py       recognises a job by its config
    resources.py      the cores, GPUs and threads of a sweep
    allocation.py     what each job needs and gets
    attempts.py     starts a job afresh, or on from its checkpoint
    timed/          measured times: the order of jobs, how fast and how quiet the cores are
    workers/        where jobs run: here, or in workers that Slurm or Ray starts elsewhere
    runner.py       the loop that starts jobs, waits for their ends, stops them
    jobs/           the processes: the fork server, a job's supervisor, the job
    records.py      manifest.json and index.csv
    lock.py         one launcher a directory
    screen.py       the table on a terminal, or plain lines
    texts.py        words for people: durations, cores, how jobs ended

It works for any Hydra application; `hydra_plugins.walle_launcher` registers it.
"""
