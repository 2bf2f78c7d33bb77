"""Jobs that are composed quickly have the configs that Hydra composes, or Hydra's errors."""

from __future__ import annotations

import pickle

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import OmegaConf

from walle.config import config_directory
from walle.launcher.planning import FastLoader

JOBS = [
    ["seed=2", "algo.clip=0.3", "name=two words", "sampler.n=4"],
    ["env=cartpole", "seed=3", "total_steps=1e5", "eval.episodes=0"],
    ["algo=trpo", "env=hopper", "algo.gamma=0.9", "env.episode_limit=10"],
    ["++algo.clip=0.25", "++env.kwargs.frame_skip=2"],
    ["+env.kwargs.frame_skip=3", "~callbacks", "hydra.verbose=true"],  # left to Hydra
    ["++env.kwargs={a: 1}", "net=gru", "+experiment=ppo_cartpole"],
    [],
]


@pytest.fixture(scope="module")
def hydra():
    """Hydra's loader, and the config of a sweep."""
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        master = loader.load_configuration("config", ["hydra.job.name=x"], RunMode.MULTIRUN)
        yield loader, master


@pytest.mark.parametrize("job", JOBS, ids=" ".join)
def test_a_config_is_the_one_that_hydra_composes(hydra, job):
    loader, master = hydra
    quick = FastLoader(loader)
    quick.load_sweep_config(master, [*job[:1], "seed=99"])  # leaves nothing behind
    expected = loader.load_sweep_config(master, job)
    for found in (quick.load_sweep_config(master, job), quick.load_sweep_config(master, job)):
        assert OmegaConf.to_yaml(found) == OmegaConf.to_yaml(expected)
        for key in ("hydra", "algo", "env.kwargs"):
            ours, theirs = (OmegaConf.select(one, key) for one in (found, expected))
            assert OmegaConf.is_struct(ours) == OmegaConf.is_struct(theirs), key
            assert OmegaConf.get_type(ours) == OmegaConf.get_type(theirs), key


@pytest.mark.parametrize("job", [["algo.clipp=1"], ["env=nowhere"]])
def test_what_hydra_refuses_is_refused_in_its_words(hydra, job):
    loader, master = hydra

    def said(each):
        try:
            return OmegaConf.to_yaml(each.load_sweep_config(master, [*job, "seed=1"]))
        except ConfigCompositionException as error:
            return f"{error} {error.__cause__}"

    assert said(FastLoader(loader)) == said(loader)


def test_groups_of_the_search_path_are_groups(hydra, tmp_path):
    loader, _ = hydra
    (tmp_path / "thing").mkdir()
    for name in ("a", "b"):
        (tmp_path / "thing" / f"{name}.yaml").write_text(f"letter: {name}\n")
    place = f"hydra.searchpath=[file://{tmp_path}]"
    master = loader.load_configuration("config", [place, "+thing=a"], RunMode.MULTIRUN)
    for name in ("a", "b"):
        found = FastLoader(loader).load_sweep_config(master, [f"+thing={name}"])
        assert found.thing == {"letter": name}


def test_every_caller_has_a_config_of_its_own(hydra):
    loader, master = hydra
    quick = FastLoader(loader)
    quick.load_sweep_config(master, ["seed=1"]).seed = 5
    assert quick.load_sweep_config(master, ["seed=1"]).seed == 1


def test_hydra_composes_each_combination_of_groups_once(hydra):
    loader, master = hydra
    quick, asked = FastLoader(loader), []

    class Counting:
        def load_sweep_config(self, master, overrides):
            asked.append(tuple(overrides))
            return loader.load_sweep_config(master, overrides)

        get_group_options = loader.get_group_options

    quick._loader = Counting()
    for job in range(20):
        quick.load_sweep_config(
            master, [f"env={'cartpole' if job % 2 else 'hopper'}", f"seed={job}"]
        )
    assert sorted(asked) == [("env=cartpole",), ("env=hopper",)]


def test_jobs_get_the_loader_without_its_configs(hydra):
    loader, master = hydra
    quick = FastLoader(loader)
    quick.load_sweep_config(master, ["seed=1"])
    quick._loader = "loader"
    assert len(pickle.dumps(quick)) < 500
    assert pickle.loads(pickle.dumps(quick))._bases == {}
