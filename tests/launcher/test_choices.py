"""Settings of single choices, against a loader that composes three algorithms."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from walle.errors import ConfigError
from walle.launcher.planning import ChoiceSettings, swept_keys

ALGORITHMS = {
    "ppo": {"name": "ppo", "clip": 0.2, "epochs": 10},
    "a2c": {"name": "a2c", "entropy_weight": 0.0},
    "sac": {"name": "sac", "tau": 0.005},
    "own": {"name": "???"},
}


class Loader:
    """Composes a job as Hydra's loader does, from `algo=NAME` alone."""

    def get_group_options(self, group, *_):
        return list(ALGORITHMS) if group == "algo" else []

    def load_sweep_config(self, _, overrides):
        given = dict(each.split("=") for each in overrides)
        choice = given.get("algo", "ppo")
        hydra = {"runtime": {"choices": {"algo": choice}}, "job": {"config_name": None}}
        return OmegaConf.create(
            {"algo": ALGORITHMS[choice], "batch_size": 64, "hydra": hydra, "sampler": {"n": 1}}
        )


CONTEXT = SimpleNamespace(config_loader=Loader())


def master(*task, params=None):
    """The config of a sweep in which the user typed `task`."""
    config = Loader().load_sweep_config(None, [])
    config.hydra.overrides = {"task": list(task), "hydra": []}
    config.hydra.sweeper = {"params": params}
    return config


def own(*task, group="algo", params=None):
    return ChoiceSettings(CONTEXT, master(*task, params=params), group)


def test_a_setting_reaches_the_jobs_of_its_choice_alone():
    settings = own("algo=ppo,a2c", "++ppo.clip=0.1")
    assert settings.resolved(["algo=ppo", "++ppo.clip=0.1", "seed=3"]) == [
        "algo=ppo",
        "seed=3",
        "algo.clip=0.1",
    ]
    assert settings.resolved(["algo=a2c", "++ppo.clip=0.1", "seed=3"]) == ["algo=a2c", "seed=3"]


def test_it_wins_over_the_setting_of_all_choices():
    resolved = own().resolved(["algo=ppo", "algo.clip=0.3", "++ppo.clip=[1,2]"])
    assert resolved == ["algo=ppo", "algo.clip=[1,2]"]


def test_a_key_of_the_run_may_be_a_choice_s_own_too():
    resolved = own().resolved(["algo=ppo", "++ppo.batch_size=128", "++ppo.sampler.n=2"])
    assert resolved == ["algo=ppo", "batch_size=128", "sampler.n=2"]


def test_a_key_without_a_value_is_a_key():
    assert own().resolved(["algo=own", "++own.name=a:B"]) == ["algo=own", "algo.name=a:B"]


def test_a_new_key_keeps_its_plus_sign():
    typed = master("+ppo.beta=1")
    typed.ppo = {"beta": 1}  # as Hydra adds it
    assert ChoiceSettings(CONTEXT, typed, "algo").resolved(["+ppo.beta=1"]) == ["+algo.beta=1"]


def test_other_overrides_and_groups_stay_as_they_are():
    overrides = ["algo=ppo", "sampler.n=2", "+env.kwargs.ppo=1", "hydra.job.name=x"]
    assert own().resolved(overrides) == overrides
    assert own(group=None).resolved(["++ppo.clip=0.1"]) == ["++ppo.clip=0.1"]


@pytest.mark.parametrize("typed", ["++ppo.clipp=0.1", "++ppo.hydra.job.name=x"])
def test_a_key_that_the_choice_lacks_is_refused(typed):
    with pytest.raises(ConfigError, match=r"ppo has no setting"):
        own().resolved(["algo=ppo", typed])


def test_the_nearest_name_is_given():
    with pytest.raises(ConfigError, match=r"^ppo.clipp=0.1: ppo .* did you mean 'ppo.clip'"):
        own().resolved(["algo=ppo", "++ppo.clipp=0.1"])


def test_a_choice_that_no_job_has_is_refused():
    jobs = [["algo=ppo", "++sac.tau=0.1"], ["algo=a2c", "++sac.tau=0.1"]]
    settings = own("algo=ppo,a2c", "++sac.tau=0.1")
    configs = [Loader().load_sweep_config(None, job[:1]) for job in jobs]
    with pytest.raises(ConfigError, match=r"no job of this sweep has algo=sac.*algo=a2c,ppo:"):
        settings.refuse_absent(jobs, configs)


def test_an_adaptive_sweeper_may_choose_it_later():
    job, config = ["algo=ppo", "++sac.tau=0.1"], Loader().load_sweep_config(None, ["algo=ppo"])
    with pytest.raises(ConfigError):
        own(params={"algo": "ppo"}).refuse_absent([job], [config])
    assert own(params={"algo": "choice(ppo,sac)"}).refuse_absent([job], [config]) is None


def test_the_swept_keys_are_those_of_the_jobs():
    typed = master("algo=ppo,a2c", "++ppo.clip=0.1,0.2", "seed=1,2")
    jobs = [["algo=ppo", "algo.clip=0.1", "seed=1"], ["algo=a2c", "seed=2"]]
    assert swept_keys(CONTEXT, typed, jobs) == {"algo", "algo.clip", "seed"}
