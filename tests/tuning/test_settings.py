"""The settings of the sweeper."""

import pytest
from omegaconf import OmegaConf

from walle.errors import ConfigError, check_bounds
from walle.tuning.settings import WalleOptunaConf
from walle.tuning.space import Space
from walle.tuning.sweep import read_seeds


def seeds_of(setting):
    settings = WalleOptunaConf(seeds=setting)
    return read_seeds(settings, Space((), {}, {}), OmegaConf.create({"seed": 5}))


@pytest.mark.parametrize(
    ("asked", "expected"), [(None, None), (3, [5, 6, 7]), ([4, 2], [4, 2]), (1, [5])]
)
def test_seeds_are_listed_or_counted(asked, expected):
    assert seeds_of(asked) == expected


@pytest.mark.parametrize("setting", [0, True, [], [1, 1], ["a"], 1.5, "1,2"])
def test_impossible_seeds_are_refused_with_their_key(setting):
    with pytest.raises(ConfigError, match=r"hydra\.sweeper\.seeds="):
        seeds_of(setting)


@pytest.mark.parametrize(
    "setting", [{"n_trials": 0}, {"n_jobs": 0}, {"timeout_s": 0}, {"direction": "up"}, {"seed": -1}]
)
def test_impossible_values_are_refused_with_their_key(setting):
    with pytest.raises(ConfigError, match=f"hydra.sweeper.{next(iter(setting))}="):
        check_bounds(WalleOptunaConf(**setting), "hydra.sweeper")
