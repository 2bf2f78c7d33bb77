"""The processes of a sweep's jobs.

fork_server.py   the process that every job is forked from, seen from the launcher and from
                     inside, and the jobs' supervisors
job.py           a job inside its own process
verdict.py       how a job ended
"""
