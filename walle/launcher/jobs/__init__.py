"""The processes of a sweep's jobs.

    client.py        the launcher's side: starts the fork server, asks it for jobs
    fork_server.py   the process that every job is forked from, and the jobs' supervisors
    job.py           a job inside its own process
    verdict.py       tells how a job ended

The package imports nothing else of `walle` but `walle.system`.
"""
