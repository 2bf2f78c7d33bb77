from walle.config.files import (
    config_directory,
    help_text,
    recipes,
    sweep_questions,
    sweeps_directory,
)


def test_the_help_names_every_choice_and_every_sweep():
    text = help_text()
    for group in ("algo", "env", "net", "sampler", "learner", "logger"):
        (line,) = (line for line in text.splitlines() if line.startswith(f"  {group} "))
        assert {file.stem for file in (config_directory() / group).glob("*.yaml")} <= {
            word.strip(",") for word in line.split()
        }
    for file in sweeps_directory().glob("*.yaml"):
        assert f"  {file.stem} " in text
        assert sweep_questions()[file.stem] in text


def test_sweep_files_of_ones_own_come_last(tmp_path, monkeypatch):
    """A file that starts no sweep, such as one of settings, is none of them."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "rates.yaml").write_text("# Which rate?\nhydra:\n  mode: MULTIRUN\n")
    (tmp_path / "conf" / "notes.yaml").write_text("# Notes.\nseed: 1\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "sizes.yaml").write_text("hydra: {mode: MULTIRUN}\n")
    monkeypatch.chdir(tmp_path)
    found = sweep_questions(["--config-dir", "more"])
    assert dict(list(found.items())[-2:]) == {"rates": "Which rate?", "sizes": ""}
    assert len(found) == len(sweep_questions()) + 1 == len({*found} - {"notes"})
    assert "  rates " in help_text()


def test_a_file_in_another_encoding_is_listed_too(tmp_path, monkeypatch):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    for file in ("conf/mine.yaml", "conf/experiment/mine.yaml"):
        (tmp_path / file).write_bytes(b"# caf\xe9\nhydra: {mode: MULTIRUN}\n")
    (tmp_path / "conf" / "env").mkdir()
    (tmp_path / "conf" / "env" / "robo.yaml").write_text("# My robot.\n")
    monkeypatch.chdir(tmp_path)
    assert "Settings of env=robo (conf/env/robo.yaml):" in help_text(["env=robo"])
    assert sweep_questions()["mine"] == recipes()["mine"] == "caf\N{REPLACEMENT CHARACTER}"


def test_the_help_has_the_comments_of_the_settings_that_were_chosen():
    assert "Settings of algo=ppo (conf/algo/ppo.yaml):" in help_text()
    assert "weight of the entropy bonus" in help_text()
    text = help_text(["algo=sac", "env=hopper", "--help"])
    assert "Settings of algo=sac" in text
    assert "Settings of env=hopper" in text
    assert "frame_skip: 1 " in text  # of conf/env/gym.yaml, which hopper.yaml starts from
    assert "Settings of net=mlp256" in text  # which SAC chooses
    assert "Settings of net=mlp (" not in text
    assert "Settings of net=gru" in help_text(["algo=sac", "net=gru"])
    several = help_text(["algo=ppo,td3", "env=hopper"])
    for choice in ("algo=ppo", "algo=td3", "env/tuned=hopper-ppo", "env/tuned=hopper-td3"):
        assert f"Settings of {choice} (" in several
    assert "Settings of env/tuned=hopper-ppo" in help_text(["env=hopper"])
    assert "algo=ppo" not in text.partition("Settings (conf/config.yaml)")[2]
