import re
import subprocess
import sys
from pathlib import Path

import pytest

from walle.config import compose, config_directory, config_hash
from walle.errors import ConfigError
from walle.system.machine import usable_physical_cores

ROOT = Path(__file__).resolve().parents[2]
ENVS = sorted(p.stem for p in (config_directory() / "env").glob("*.yaml"))


def test_defaults():
    config = compose()
    assert (config.env.id, config.algo.name, config.total_steps) == ("HalfCheetah-v5", "ppo", 10**6)
    assert config.n == min(usable_physical_cores(), 128)
    assert config.lanes == 128


@pytest.mark.parametrize(
    ("batch", "lanes"),
    [(2048, 64), (20480, 256), (20000, 32), (256, 8), (1000, 8), (999, 1)],
)
def test_lanes_are_a_power_of_two_that_divides_the_batch_into_32_steps_or_more(batch, lanes):
    assert compose([f"batch_size={batch}", "sampler.n=1"]).lanes == lanes


@pytest.mark.parametrize(("batch", "lanes"), [(4096, 64), (20000, 32), (1000, 8)])
def test_tasks_that_fall_have_rollouts_of_64_steps_by_default(batch, lanes):
    assert compose(["env=hopper", f"batch_size={batch}"]).lanes == lanes


def test_numbers_may_be_written_as_a_person_would():
    numbers = ["total_steps=1e6", "algo.learning_rate=1", "net.policy_hidden=[64.0,1e2]"]
    config = compose([*numbers, "sampler.max_lag=null"])
    assert config.total_steps == 10**6
    assert config.net.policy_hidden == [64, 100]
    assert config.algo.learning_rate == 1.0
    assert config.sampler.max_lag is None


@pytest.mark.parametrize("env", ENVS)
def test_every_environment_file_composes(env):
    extra = ["env.id=CartPole-v1"] if env == "gym" else []
    assert compose([f"env={env}", *extra]).env.name == env


def test_slow_passes_its_step_on():
    assert compose(["env=slow", "env.step_ms=7"]).env.kwargs["step_ms"] == 7.0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env.reset_options=3"], r"env.reset_options=3 must be a mapping: \{key: value\}"),
        (["callbacks=early:Solved"], r"callbacks='early:Solved' must be a list, .*\[early"),
        (["hydra.run.dir=x"], r"hydra\.run\.dir=x .*walle\.train\(config, directory\)"),
        (["+algo.clipp=0.3"], r"algo.clipp is not a setting; did you mean 'algo.clip'"),
        (["+nam=x"], r"nam is not a setting; did you mean 'name'"),
        (["algo.clip=abc"], r"algo.clip='abc' must be a number$"),
        (["algo.clip=2"], r"algo.clip=2.0 must lie in \(0, 1\), as in 0.2"),
        (["algo.schedule=quadratic"], r"algo.schedule='quadratic'.*linear"),
        (["algo.gamma=1.5"], r"algo.gamma=1.5"),
        (["sampler.n=0"], r"sampler.n=0 must be positive"),
        (["total_steps=null"], r"total_steps=None is no value for it; leave it out, or give one"),
        (["trace=0.5"], r"trace=0.5 must be true or false"),
        (["learner.n=3"], r"set learner.shards=3 and algo.minibatch_size=1023 or 1026, or"),
        (["sampler.n=129"], r"sampler.n=129 is more than sampler.lanes=128.*256"),
        (["sampler.n=33", "batch_size=20000"], r"set sampler.lanes to 40 "),
        (["batch_size=2050", "sampler.lanes=64"], r"nearest values that fit: 2048 or 2112"),
        (["sampler.max_lag=-1"], r"lock-step"),
        (["sampler.max_lag=2", "sampler.slots=1"], r"sampler.slots=1 .* use sampler.slots=3"),
        (["sampler=serial", "sampler.n=2"], r"sampler=serial"),
        (["sampler=serial", "sampler.max_lag=1"], r"cannot overlap"),
        (["sampler=serial", "sampler.slots=2"], r"sampler.slots=2 .* no queue"),
        (["env=gym"], r"env.id has no value"),
        (["env.action=resacle"], r"did you mean 'rescale'"),
        (["env.backend=jax"], r"env.backend='jax' is unknown"),
        (["net.policy_hidden=[64,0]"], r"net.policy_hidden"),
        (["net.policy_hidden=[64,1.5]"], r"net.policy_hidden=\[64, 1.5\] must be a whole number"),
        (["algo.minibatch_size=1e30"], r"algo.minibatch_size=1\d+ is too large; use whole numbers"),
        (["sampler.max_lag=1e30"], r"sampler.max_lag=1\d+ is too large"),
        (["net=gru", "net.hidden=0"], r"net.hidden=0 must be positive"),
        (["net=gru", "net.sequence=10"], r"net.sequence=10 .* 32 steps .* 1, 2, 4, 8, 16, 32$"),
        (["net=gru", "algo.minibatch_size=8"], r"=8 is no whole number of sequences .* of 16$"),
        (["net=gru", "algo.minibatch_size=100"], r"=100 is no whole number .* of 16$"),
        (["net.scale=states"], r"did you mean 'state'"),
        (["net.scale=state", "algo=sac"], r"algo=sac, which has another kind of policy"),
        (["algo=sac", "total_steps=5000"], r"learning_starts=5000: .* never learn; use more"),
        (
            ["algo=xqc", "total_steps=300", "algo.learning_starts=100", "algo.policy_delay=500"],
            r"updates_per_step=2.0 .*_delay=500: .* never learn; .*_starts or algo.policy_delay$",
        ),
        (
            ["algo=sac", "total_steps=6000", "algo.updates_per_step=1e-4"],
            r"updates_per_step=0.0001 with total_steps=6000, .* never learn; .*learning_starts$",
        ),
        (["algo=xqc", "schedule_steps=5000"], r"learning_starts=5000 .* 0 from the first update"),
        (["algo=pqn", "env=cartpole", "net.scale=state"], r"algo=pqn, which has another kind of p"),
        (["algo=dqn", "env=cartpole", "net.scale=state"], r"algo=dqn, which has another kind of p"),
        (
            ["algo=a3c", "sampler=serial"],
            r"algo=a3c cannot run with sampler=serial: .*; use sampler=process with sampler.max",
        ),
        (["algo=ddpg", "algo.exploration=0"], r"exploration=0.0 must be positive: without noise"),
        (
            ["net=gru", "algo.minibatch_size=48", "learner.shards=2"],
            r"learner.shards=2; use a multiple of 32",
        ),
        (["net=gru", "sampler.collect=episodes"], r"net=gru.* use sampler.collect=fixed"),
        (["net.name=gru2"], r"net.name='gru2' is unknown; did you mean 'gru'"),
        (["total_steps=1.5"], r"total_steps=1.5 must be a whole number$"),
        (["total_steps=many"], r"total_steps='many' must be a whole number$"),
        ("env=cartpole seed=2", r"is one text; give a list: \['env=cartpole', 'seed=2'\]$"),
        (["resume=outputs/a"], r"starts a new run; .* type `walle run resume=outputs/a`$"),
        (["seed=-1"], r"seed=-1"),
        (["device=tpu9"], r"device='tpu9'"),
        (["device=meta"], r"device='meta' is unknown; use cpu, cuda"),
        (["device=cuda:99"], r"device='cuda:99': torch sees \d+ CUDA devices; use device=cpu"),
        (["learner.threads=0"], r"learner.threads=0"),
        (["learner.threads=100000"], r"learner.threads=100000 is more than this machine's"),
        (["algo.learning_rate=nan"], r"algo.learning_rate=nan must be a finite number"),
        (["algo.entropy_weight=inf"], r"algo.entropy_weight=inf must be a finite number"),
        (["algo.max_grad_norm=0"], r"algo.max_grad_norm=0.0 must be positive"),
        (["algo.target_kl=-1"], r"algo.target_kl=-1.0 must be positive"),
        (["algo.obs_clip=0"], r"algo.obs_clip=0.0 must be positive"),
        (["algo.value_weight=-1"], r"algo.value_weight=-1.0 must not be negative"),
        (["algo=ppo_kl", "algo.kl_target=0"], r"algo.kl_target=0.0 must be positive"),
        (["algo=ppo_kl", "algo.eta=-1"], r"algo.eta=-1.0 must not be negative"),
        (["logger.print_every_s=0"], r"logger.print_every_s=0.0 must lie in \(0, 1e6\], as in 10"),
        (["logger.print_every_s=1e10"], r"logger.print_every_s=1\S+ must lie in \(0, 1e6\]"),
        (["sampler.timeout_s=1e7"], r"sampler.timeout_s=1\S+ must lie in \(0, 1e6\], as in 600"),
        (["logger=wandb", "logger.mode=offlin"], r"did you mean 'offline'"),
        (["logger=wandb", "logger.project=a/b c"], r"logger.project='a/b c' needs 1 to 128 char"),
        (
            ["logger=wandb", f"logger.tags=[a,{80 * 't'}]"],
            r"logger.tags=\['a', 't+'\] needs 1 to 64",
        ),
        (["logger=[wandb,tensorboard]", "logger.project=a%b"], r"logger.project='a%b' needs 1 to"),
        (["eval=null"], r"eval=null: .*; eval\.episodes=0 leaves out evaluations$"),
        (["eval=false"], r"eval=False: eval holds settings; type eval.every=null for one"),
        (["eval.episodes=-1"], r"eval.episodes=-1 must not be negative"),
        (["eval=5000"], r"eval=5000: eval holds settings; .* eval.every=STEPS;"),
        (
            ["checkpoint=runs/last.pt"],
            r"checkpoint=runs/last.pt: .* to resume a run type resume=DIR",
        ),
        (["+env.step_ms=3"], r"env.step_ms is not a setting; choose one of: env.action"),
        (["~env"], r"env has no value; give one: env="),
        (["~seed"], r"seed has no value; give one: seed="),
    ],
)
def test_what_cannot_work_says_why_and_what_would(overrides, message):
    with pytest.raises(ConfigError, match=message):
        compose(overrides)


def test_a_logger_without_its_package_is_refused(monkeypatch):
    monkeypatch.setattr("walle.config.checks.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"logger=wandb needs .* install walle\[wandb\]"):
        compose(["logger=wandb"])


@pytest.mark.parametrize("found", [False, True])
def test_wandb_without_a_login_is_refused(monkeypatch, found):
    wandb = pytest.importorskip("wandb")

    def login(**_):
        if found:
            raise wandb.errors.AuthenticationError("API key must have 40 characters")
        return False

    monkeypatch.setattr(wandb, "login", login)
    with pytest.raises(ConfigError, match=r"no valid W&B login .* or use logger.mode=offline$"):
        compose(["logger=wandb"])
    assert compose(["logger=wandb", "logger.mode=offline"]).logger.names == ["wandb"]


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ("[tensorboard,wandb]", ["tensorboard", "wandb"]),
        ("[wandb,tensorboard]", ["tensorboard", "wandb"]),
        ("[wandb,files]", ["wandb"]),
        ("[tensorboard,files]", ["tensorboard"]),
        ("tensorboard", ["tensorboard"]),
        ("files", []),
    ],
)
def test_every_logger_of_a_list_is_used(chosen, names):
    offline = ["logger.mode=offline"] if "wandb" in names else []
    logger = compose([f"logger={chosen}", *offline]).logger
    assert logger.names == names
    assert not {"names", "tensorboard"} & logger.options.keys()


def test_the_hash_is_of_what_decides_the_result():
    assert config_hash(compose()) == config_hash(compose(["name=other"]))
    assert config_hash(compose()) != config_hash(compose(["seed=1"]))
    assert config_hash(compose()) != config_hash(compose(["algo.clip=0.3"]))


def test_a_python_without_the_packages_is_told_in_one_line():
    """So it is in a clone whose environment is not activated; -S leaves out installed packages."""
    command = [sys.executable, "-S", "-m", "walle.run", "env=cartpole"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=ROOT)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "has no hydra-core: activate walle's environment" in done.stderr


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("sampler.m=4", "walle: sampler.m is not a setting; did you mean 'sampler.n'?"),
        ("algo=pppo", "walle: algo=pppo does not exist; did you mean 'ppo'?"),
        (
            "net.hidden=32",
            "walle: net.hidden is a setting of net=gru alone; add that, or drop net.hidden "
            "(with net=own: +net.hidden=...)",
        ),
        ("algoo=ppo", "walle: algoo is not a setting; did you mean 'algo'?"),
        ("algo.clip", "walle: algo.clip is not KEY=VALUE; type algo.clip=VALUE, without spaces"),
        ("sampler.n=0", "walle: sampler.n=0 must be positive"),
        ("--seed=3", "walle: --seed=3 is not a flag; settings are written seed=VALUE"),
        ("env=gym", "walle: env.id has no value; give one: env.id=..."),
        (
            "hydra.sweeper.params.seed=5",
            "walle: hydra.sweeper.params has no values here; type KEY=VALUE, or for a sweep "
            "-m KEY=A,B",
        ),
        ("env.kwargs.x=1", "walle: env.kwargs.x does not exist yet; add it: +env.kwargs.x=..."),
        (
            "logger=null",
            "walle: logger=null: give logger one of its options: files, tensorboard, wandb",
        ),
        (
            "sampler=2",
            "walle: sampler=2: give sampler one of its options: process, ray, serial; for a number "
            "type sampler.n=2",
        ),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(override, line, tmp_path, command, capsys):
    with pytest.raises(SystemExit) as ended:
        command(override, f"hydra.run.dir={tmp_path}/out")
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"{line}\n")
    assert not (tmp_path / "out").exists()


def test_flags_that_exclude_each_other_are_one_line(command, capsys):
    with pytest.raises(SystemExit) as ended:
        command("-m", "seed=1,2", "--cfg", "job")
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("walle: Only one of --run, --multirun, --cfg")


def test_the_line_is_all_that_the_command_says(tmp_path):
    command = [sys.executable, "-m", "walle.run", "sampler.n=0", f"hydra.run.dir={tmp_path}/out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "walle: sampler.n=0 must be positive\n"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"# caf\xe9\n", r"\S+/mine\.yaml is not UTF-8 \(.*\); save it in that encoding"),
        (b"seed: [3\n", r"while parsing a flow sequence in \"\S+/mine\.yaml\", line 1.*"),
        (
            b"defaults: [config, _self_]\nhydra: {launcher: {cores: 2}}\n",
            r"In 'mine': hydra\.launcher\.cores must be a list: \[\.\.\.\]",
        ),
        (
            b"defaults: [config, _self_]\nhydra: {sweeper: {parms: {seed: 3}}}\n",
            r"In 'mine': hydra\.sweeper\.parms is not a setting; did you mean '\S+params'\?",
        ),
        (
            b"defaults: [config, _self_]\nsampler: serial\n",
            r"sampler=serial: .*; in a file choose one under defaults: `- override /sampler: .*",
        ),
        (b"defaults: [config, _self_]\nalgo: td3\n", r"algo=td3: algo holds settings; .*"),
        (b"seed: 3\n", r"walle's settings are absent: begin the file of -cn with .*"),
        (
            b"defaults: [config, _self_]\nhydra: {mode: MULTIRUNS}\n",
            r"In 'mine': hydra\.mode: Invalid value 'MULTIRUNS', expected one of .*",
        ),
    ],
)
def test_a_yaml_file_that_cannot_be_read_is_named_in_one_line(
    tmp_path, command, capsys, content, line, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # without walle's settings Hydra makes outputs/ in it
    (tmp_path / "mine.yaml").write_bytes(content)
    with pytest.raises(SystemExit, match="2"):
        command("-cd", str(tmp_path), "-cn", "mine")
    assert re.fullmatch(f"walle: {line}\n", capsys.readouterr().err)


LONG = 300 * "x"
TOO_LONG = r"the name x{20}\.\.\. has 300 bytes, more than 255; shorten it"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([f"hydra.run.dir={LONG}"], rf"hydra\.run\.dir: {TOO_LONG}"),
        ([f"hydra.output_subdir={LONG}"], rf"hydra\.output_subdir: {TOO_LONG}"),
        ([f"resume={LONG}"], r"resume=x+: cannot be read: File name too long"),
        (["-m", f"name={LONG}"], f"name: {TOO_LONG}"),
        (["-m", f"hydra.sweep.dir={LONG}"], rf"hydra\.sweep\.dir: {TOO_LONG}"),
        (["-m", f"hydra.sweep.subdir={LONG}"], f"#0 .* cannot have its directory: {TOO_LONG}"),
        (
            ["-m", "name=../x"],
            r"name=\.\./x would lead out of multirun/, or to it; give another.*",
        ),
        (["-m", "name=."], r"name=\. would lead out of multirun/, or to it; give another name.*"),
        (["-m", "name="], "name= would lead out of multirun/, or to it; give another name.*"),
        (
            ["-m", "hydra.run.dir=x/${seed}"],
            r".* setting of one run, and this is a sweep: type hydra\.sweep\.dir=x/\$\{seed\}",
        ),
        (
            ["hydra.sweep.dir=x"],
            r"hydra\.sweep\.dir=x is a setting of sweeps, and this is .*: add -m",
        ),
        (["hydra/launcher=walle"], r"hydra/launcher=walle is a setting of .*: add -m"),
        (["-m", "name=file"], "name: multirun/file is a file; move it, or give another directory"),
        (
            ["-m", "hydra.sweep.dir=multirun/file"],
            r"hydra\.sweep\.dir: multirun/file is a file; .*",
        ),
        (["hydra.run.dir=multirun/file"], r"hydra\.run\.dir: multirun/file is a file; .*"),
        (["-m", "hydra.sweep.dir="], "hydra.sweep.dir: it is empty; give it a value"),
        (["hydra.run.dir="], "hydra.run.dir: it is empty; give it a value"),
        (["-m", "hydra.sweep.subdir=."], "#0 .*: multirun/.* holds the sweep; give .*"),
        (["-m", "hydra.sweep.dir=a/b", "hydra.sweep.subdir=.."], "#0 .*: .* holds the sweep; .*"),
        (["name='two\nlines'"], r"name: the name 'two\\nlines' has characters that cannot be.*"),
    ],
)
def test_a_name_that_no_directory_can_have_is_refused_in_one_line(
    tmp_path, monkeypatch, command, capsys, arguments, line
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "multirun").mkdir()
    (tmp_path / "multirun" / "file").touch()
    with pytest.raises(SystemExit, match="2"):
        command(*arguments, "sampler=serial")
    assert re.fullmatch(f"(walle: )?{line}\n", capsys.readouterr().err)
    assert not list(tmp_path.glob("**/*.json"))


@pytest.mark.parametrize(
    ("flags", "place"), [((), "hydra.run.dir"), (("-m", "seed=1,2"), "hydra.sweep.dir")]
)
def test_an_output_directory_that_cannot_be_is_told_in_one_line(tmp_path, flags, place):
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "walle.run", *flags, f"{place}={tmp_path}/file/run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.stderr.splitlines()[-1].startswith("walle: cannot write: ")
    assert done.stderr.endswith(f"choose another directory with {place}=...\n")
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
