"""Sweeps on other machines: workers that a scheduler starts, and that claim jobs.

    backend.py         the backends of this machine and of Slurm, and the base class of Slurm's and
                       Ray's, which submits workers and follows their jobs
    ray_backend.py     the backend of Ray: starts workers on free cores, ends them after Ctrl-C
    ray_supervisor.py  an actor of Ray on a node: starts a worker's process, and ends with it
    submission.py      a submission: its directory, the names and states of its workers
    claims.py          which worker runs which job, and which jobs to stop, in shared files
    worker.py          the worker's process, and the plan in files that it reads
    slurm.py           Slurm's commands and batch scripts

A worker is an element of an array of Slurm's batch jobs, or a child of an actor of Ray. It has some
cores of one node, and runs jobs on them until none is left, with the runner of the local backend:
only the source of the jobs differs.
All that workers share lies in `.workers/K/` of the sweep's directory, where K counts the
submissions:

    jobs/, common.pkl    the plan, written once by the command
    submitted.json       the scheduler's names of the workers, and the jobs
    claims/7.0           the worker that claimed job 7 first
    claims/7.0.completed how job 7 ended
    stops/7              why job 7 need not run to its end: a search prunes its trial
    alive/WORKER         a number that grows every `heartbeat_s` while the worker lives
    logs/                what the workers print

A claim is a file that only one process can create. A claim whose worker has vanished, or whose
worker gave the job back with a checkpoint (`7.0.released`), is followed by the claim `7.1`, which
likewise only one process can create. Clocks of different machines are never compared: a worker has
vanished when its number has not changed for `stale_s` seconds while another process watched. A job
whose directory is still locked by its run is never claimed: its worker is only slow.

A search with a pruner watches the `eval.csv` of running jobs on the machine where it was started.
Workers look into `stops/` every `heartbeat_s`, and end a job in it as the local backend does: with
a checkpoint and the state `pruned`.

When Slurm takes the cores back (preemption, a time limit), the worker asks its jobs to write their
checkpoints and end; then it gives the jobs back and asks Slurm to start it again. submitit is not
used: it would put a process that swallows SIGTERM between Slurm and the worker, and it needs job
accounting, which many clusters do not have.
"""
