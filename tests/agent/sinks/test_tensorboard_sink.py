"""What TensorBoard's own reader finds in the event files of a run."""

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata, plugin_data_pb2

from tests.conftest import SMALL, compose, read
from walle.agent import checkpoint
from walle.agent.sinks import Description, TensorBoardSink
from walle.training import train


def test_every_column_is_in_a_section_and_the_settings_are_hyperparameters(run):
    overrides = ("env=cartpole", "sampler=serial", "eval.every=512", "eval.episodes=2")
    _, directory = run(*overrides, "logger=tensorboard", "sampler.lanes=8")
    events = EventAccumulator(str(directory / "tensorboard" / "ppo cartpole")).Reload()
    tags = set(events.Tags()["scalars"])
    names = {tag.partition("/")[2] for tag in tags if tag.split("/")[0] not in ("eval", "summary")}
    assert names == set(read(directory / "iterations.csv")[0]) - {"env_steps"}
    assert {"time/collect_s", "return/return_mean", "loss/kl", "lag/lag_mean"} <= tags
    assert {"eval/return_mean", "summary/collect_share", "summary/eval_mean"} <= tags
    (last,) = [one.value for one in events.Scalars("time/wall_s") if one.step == 768]
    assert abs(last - float(read(directory / "iterations.csv")[-1]["wall_s"])) < 1e-3

    assert {metadata.EXPERIMENT_TAG, metadata.SESSION_START_INFO_TAG} <= set(
        events.PluginTagToContent("hparams")
    )
    content = events.PluginTagToContent("hparams")[metadata.SESSION_START_INFO_TAG]
    start = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    found = {name: value.WhichOneof("kind") for name, value in start.hparams.items()}
    assert start.hparams["algo.clip"].number_value == 0.2
    assert found["net.policy_hidden"] == "string_value"
    assert not {"logger.name", "sampler.slots", "name"} & found.keys()


def test_a_resumed_run_does_not_show_twice_what_it_does_again(tmp_path):
    def log(steps, resumed_at=None):
        described = Description(f"env.id=ALE/Pong-v5{resumed_at or ''}", (), None, {"seed": 0})
        sink = TensorBoardSink(tmp_path, described, resumed_at)
        for env_steps in steps:
            sink.evaluation({"env_steps": env_steps, "return_mean": 1.0 + (resumed_at or 0)})
        sink._writer.close()

    log([100, 200, 300])
    log([300, 400], resumed_at=200)
    (named,) = tmp_path.iterdir()  # the name that TensorBoard shows; a resumed run keeps it
    assert named.name == "env.id=ALE_Pong-v5"
    events = EventAccumulator(str(named)).Reload().Scalars("eval/return_mean")
    assert [(one.step, one.value) for one in events] == [(100, 1), (200, 1), (300, 201), (400, 201)]


def test_a_run_that_is_resumed_with_tensorboard_shows_its_earlier_rows(run):
    overrides = ["env=cartpole", "sampler=serial", "eval.episodes=0"]
    _, directory = run(*overrides, "logger=files", "total_steps=512")
    (directory / "videos").mkdir()
    (directory / "videos/256.mp4").touch()  # which TensorBoard cannot show
    (directory / "videos/512.gif").touch()  # damaged
    config = compose([*SMALL, *overrides, "logger=tensorboard", "total_steps=768"])
    train(config, directory, (), checkpoint.load(directory / "checkpoints/last.pt"))
    (file,) = (directory / "tensorboard").rglob("events.*")
    events = EventAccumulator(str(file.parent)).Reload().Scalars("loss/kl")
    assert [one.step for one in events] == [256, 512, 768]


def test_a_run_of_an_earlier_version_keeps_its_directory(tmp_path):
    (tmp_path / "events.out.tfevents.1").touch()
    TensorBoardSink(tmp_path, Description("seed=1", (), None, {"seed": 1}), 100)._writer.close()
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
