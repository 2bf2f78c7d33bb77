"""The processes of a sweep's jobs.

    client.py        the launcher's side: starts the fork server, asks it for jobs
    fork_server.py   the process that every job is forked from, and the jobs' supervisors
    job.py           a job inside its own process
    process_tree.py  ends whole trees of processes
    verdict.py       tells how a job ended

No module of this package imports the rest of `walle`.
"""
