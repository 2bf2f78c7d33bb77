"""What a search refuses before its first job, in walle's own configuration."""

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import HydraContext, RunMode

from walle.config import config_directory
from walle.errors import ConfigError
from walle.launcher.planning import compose
from walle.tuning.settings import WalleOptunaConf
from walle.tuning.space import read_space
from walle.tuning.sweep import check_ends, check_optimizers, refusal

SMALL = ("env=cartpole", "sampler=serial", "sampler.lanes=8", "total_steps=512")


@pytest.fixture(scope="module")
def loaded():
    """The context and the config of a sweep."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        config = loader.load_configuration("config", [], run_mode=RunMode.MULTIRUN)
        yield HydraContext(config_loader=loader, callbacks=None), config


def space(*arguments):
    return read_space({}, [*SMALL, *arguments], OverridesParser.create())


def ends(loaded, axis):
    """The jobs at the ends of a search space, and the config of the sweep."""
    context, config = loaded
    return [compose(context, config, axis.overrides(end), ()) for end in axis.ends()], config


def test_some_ends_may_be_impossible_but_not_all(loaded):
    check_ends(*ends(loaded, space("batch_size=100,256")))
    with pytest.raises(ConfigError, match="no end of the search space can run: batch_size=100 is"):
        check_ends(*ends(loaded, space("batch_size=100,101")))


def test_a_pruner_needs_evaluations_before_the_end(loaded):
    """With the usual eval.every a short run has one, and nothing would be pruned without a word."""
    for every in ("250_000", "512", "null"):
        axis = space("batch_size=128,256", f"eval.every={every}")
        check_ends(*ends(loaded, axis))
        with pytest.raises(ConfigError, match=r"prune nothing: .* a smaller eval\.every"):
            check_ends(*ends(loaded, axis), prunes=True)
    often = ("batch_size=128,256", "eval.every=256,512")
    check_ends(*ends(loaded, space(*often)), prunes=True)
    with pytest.raises(ConfigError, match=r"prune nothing: .* eval\.episodes=0"):
        check_ends(*ends(loaded, space(*often, "eval.episodes=0")), prunes=True)


def test_a_refusal_is_the_reason_alone(loaded):
    context, config = loaded
    jobs = [compose(context, config, [*SMALL, f"batch_size={n}"], ()) for n in (256, 100)]
    possible, said = (refusal(job, config) for job in jobs)
    assert possible is None
    assert said.startswith("batch_size=100 is not a multiple of sampler.lanes=8")


def test_evaluations_must_tell_the_objective(loaded):
    class Launcher:
        def watch(self, watch):
            """Like walle's."""

    context, config = loaded
    settings = WalleOptunaConf(pruner="median")
    axis = space("batch_size=128,256")
    check_optimizers(settings, axis, Launcher(), config)
    other = context.config_loader.load_configuration(
        "config", ["objective=wall_s"], run_mode=RunMode.MULTIRUN
    )
    with pytest.raises(ConfigError, match="say nothing of objective=wall_s"):
        check_optimizers(settings, axis, Launcher(), other)
    with pytest.raises(ConfigError, match="object cannot stop jobs"):
        check_optimizers(settings, axis, object(), config)
