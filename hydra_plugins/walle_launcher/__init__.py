"""A Hydra launcher for measuring: one process a job, cores handed out, sweeps that resume.

    launcher.py     what Hydra imports: the plugin, light
    _settings.py    every key of hydra.launcher
    _launch.py      a launch from end to end
      _planning.py    what runs where, what is done, what is refused
        _compose.py     the jobs' configs
        _identity.py    which job is which: hashes, numbers, differences
        _cores.py       what a job needs, and who gets which
      _run.py         the loop: start, hear, time out, stop
        _warm.py        the launcher's side of the warm process
        _server.py      the warm process and the supervisors of the jobs
        _tree.py        ending whole process trees
        _job.py         a job inside its own process
        _verdict.py     how a job ended, in words
      _records.py     manifest.json, index.csv, status.json
      _lock.py        one launcher a directory
      _machine.py     threads, load, clock, GPUs
      _screen.py      the table, or plain lines
      _report.py      the list of failures, Hydra's results

Hydra imports every module here whose name does not begin with an underscore, at each start of any
of its applications.
"""
