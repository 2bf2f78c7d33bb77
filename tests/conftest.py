import csv
import glob
import json
import os
import pickle
import resource
import signal
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import torch
from hydra import compose as hydra_compose
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import open_dict

from walle.config import compose
from walle.launcher.planning import FastLoader
from walle.run import main
from walle.system.forkserver import start_fork_server
from walle.system.machine import THREAD_VARIABLES
from walle.system.process_tree import RUN_MARK
from walle.training import train

os.environ.pop("COLUMNS", None)  # pytest-xdist's, to whose width help would be wrapped
_LASTING = ("forkserver", "resource_tracker")  # Python's own; they serve the whole test session


def _children(pid):
    found = []
    for thread in glob.iglob(f"/proc/{pid}/task/*/children"):
        with suppress(OSError), open(thread) as file:
            found += map(int, file.read().split())
    return found


def _workers():
    """Descendants of this process that a test started; asked before and after every test."""
    found = [(os.getpid(), pid) for pid in _children(os.getpid())]
    for _, child in found:  # which grows meanwhile
        found.extend((child, pid) for pid in _children(child))
    return [process for each in found for process in _lingering(*each)]


def _lingering(parent, pid):
    """The process, if it is alive and not one of Python's own."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        command = " ".join(process.cmdline())
        lasting = parent == os.getpid() and any(name in command for name in _LASTING)
        if not lasting and process.status() != psutil.STATUS_ZOMBIE:
            yield process


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """As a run has by default; threads that wait for each other are slow on busy cores."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def signals_are_heard():
    """Under `nohup`, or behind `&` in a script, processes ignore them, and their children too."""
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


ROOT = f"{Path(__file__).resolve().parents[1]}/"
_MERGE = ConfigLoaderImpl._compose_config_from_defaults_list
_LOADERS = {}  # by the file of settings and the directories that are searched
_MADE = {}  # what Hydra read and merged, by its arguments and those directories


def _directories(repository):
    """Those that Hydra searches; None if a test may change the files of one."""
    paths = tuple(source.path.removeprefix("file://") for source in repository.get_sources())
    changing = (path for path in paths if path.startswith("/") and not path.startswith(ROOT))
    return None if any(changing) else paths


def _once(make, repository, argument):
    """What `make` returns, a copy of what it returned before for the same argument."""
    if (directories := _directories(repository)) is None:
        return make()
    key = (repr(argument), directories)
    if key not in _MADE:
        _MADE[key] = pickle.dumps(make())
    return pickle.loads(_MADE[key])


def _read_once(repository, config_path, *, read=ConfigRepository.load_config):
    return _once(lambda: read(repository, config_path), repository, config_path)


def _merged_once(loader, defaults, repo, *, merge=_MERGE):
    return _once(lambda: merge(loader, defaults, repo), repo, defaults)


def _composed_quickly(name, overrides):
    """As Hydra composes (test_fast_compose.py), which takes a fifth of a second each time."""
    loader = GlobalHydra.instance().config_loader()
    with suppress(Exception):  # Hydra raises it again, in its words
        if (directories := _directories(loader)) is not None:
            if (name, directories) not in _LOADERS:
                master = loader.load_configuration(name, [], RunMode.RUN)
                _LOADERS[name, directories] = FastLoader(loader), master
            quick, master = _LOADERS[name, directories]
            composed = quick.load_sweep_config(master, overrides)
            with open_dict(composed):
                del composed["hydra"]
            return composed
    return hydra_compose(name, overrides)


@pytest.fixture(autouse=True, scope="session")
def samplers_start_quickly():
    """A serial run through `command` would start a server that has not loaded torch for them."""
    start_fork_server()


@pytest.fixture(autouse=True, scope="session")
def composing_is_quick():
    """Thousands of tests compose a run; together they would wait for minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("walle.config.loading.hydra_compose", _composed_quickly)
        patch.setattr(ConfigRepository, "load_config", _read_once)
        patch.setattr(ConfigLoaderImpl, _MERGE.__name__, _merged_once)
        yield


@pytest.fixture(autouse=True)
def no_process_left():
    before = {process.pid for process in _workers()}
    yield
    left = [process for process in _workers() if process.pid not in before]
    _, alive = psutil.wait_procs(left, timeout=5)
    for process in alive:
        process.kill()
    assert not alive, f"processes left behind: {alive}"


SMALL = (
    "eval.episodes=0",
    "logger.progress=quiet",
    "batch_size=256",
    "sampler.lanes=8",
    "algo.epochs=2",
    "total_steps=768",
)


@pytest.fixture
def run(tmp_path):
    """Trains three small rounds; later overrides win. Returns the outcome and the directory."""
    count = iter(range(100))

    def _run(*overrides):
        directory = tmp_path / f"run{next(count)}"
        return train(compose([*SMALL, *overrides]), directory), directory

    return _run


@pytest.fixture
def command(monkeypatch):
    """The command `walle run` in this process, whose variables and signals stay as they were."""
    for name in ("HYDRA_FULL_ERROR", RUN_MARK, *THREAD_VARIABLES):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr("walle.run.signal", lambda *_: None)

    def _command(*arguments):
        monkeypatch.setattr(sys, "argv", ["walle", *arguments])
        main()

    return _command


@pytest.fixture
def in_this_process(command, monkeypatch, tmp_path):
    """Runs a sweep with Hydra's launcher, which starts no Python; returns its jobs' states."""
    monkeypatch.chdir(tmp_path)

    def _run(*arguments):
        other = [each for each in arguments if not each.startswith("hydra.launcher.")]
        command(*other, "algo.compile=false", "hydra/launcher=basic")
        found = sorted(tmp_path.glob("multirun/**/status.json"))
        return [json.loads(path.read_text())["state"] for path in found]

    return _run


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@contextmanager
def largest_file(size):
    """No file that this process writes may have more than `size` bytes, as under `ulimit -f`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def own_cache(path):
    """Makes `path` a cache home in which nothing is compiled; returns `path`."""
    (path / "walle").mkdir(mode=0o700)
    return path
