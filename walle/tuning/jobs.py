"""How jobs ended, from what Hydra's launchers return."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import open_dict, read_write

from walle.launcher.launch import JobFailedError
from walle.tuning.study import JobEnd


def job_end(result: JobReturn, sweep: Path) -> JobEnd:
    """How a job ended, from what the launcher returned.

    Args:
        result: of the launcher.
        sweep: the sweep's directory.
    """
    if result.cfg is None or result.hydra_cfg is None:
        raise TypeError("the launcher returned a job without its configuration")
    config, before = deepcopy(result.hydra_cfg), HydraConfig.instance().cfg
    with read_write(config), open_dict(config):
        config.merge_with(result.cfg)  # the directory's name may hold any of the settings
    HydraConfig.instance().set_config(config)
    try:
        directory = sweep / str(config.hydra.sweep.subdir)
    finally:
        HydraConfig.instance().cfg = before
    value = result._return_value
    if result.status == JobStatus.COMPLETED:
        return JobEnd("completed", value, directory)
    return JobEnd(value.state if isinstance(value, JobFailedError) else "failed", value, directory)
