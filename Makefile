# Every target does its own set-up: a fresh clone needs Python 3.11 to 3.13, pip and make.
PYTHON ?= python3
PIP = .venv/bin/python -m pip install --no-compile --quiet --disable-pip-version-check
RUN = .venv/bin/python
# The tests start hundreds of Pythons, which shall not compile every source again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: sweep test slow ray slurm gpu mutants docs lint types pythons format clean
.DEFAULT_GOAL := test

# The environment. Torch first: 2.13.0 is a CPU build where that wheel is at hand. Compiling all
# packages would take as long as installing them; the last import compiles what a sweep needs.
.venv/ready: pyproject.toml constraints.txt
	@echo "setting up .venv: some minutes, the first time"
	$(PYTHON) -m venv .venv
	$(PIP) --upgrade pip
	$(PIP) torch==2.13.0 || $(PIP) 'torch>=2.6'
	$(PIP) -c constraints.txt -e '.[box2d,dev,docs,export,optuna,ray,tensorboard,video,wandb]'
	$(RUN) -c 'import gymnasium, hydra, matplotlib.figure, mujoco, pandas, scipy.optimize, torch'
	touch $@

# A sweep over sampler counts, and its speedup figure; half a minute on two cores. Traced, so
# that every script of analysis/ has something to draw.
sweep: .venv/ready
	$(RUN) -m walle.run -m sampler.n=1,2 env=halfcheetah batch_size=20000 total_steps=160000 \
		trace=true
	$(RUN) analysis/speedup.py

# What a user runs: two tests at a time, for most of them wait.
test: .venv/ready
	$(RUN) -m pytest -q -n 2 -m "not slow and not gpu and not ray and not slurm"

# The rest: minutes each.
slow: .venv/ready
	$(RUN) -m pytest -q -n 2 -m "slow and not gpu and not ray and not slurm"

# Sweeps on a real Slurm, which the tests set up on this host and take down; needs root.
slurm: .venv/ready
	which slurmctld slurmd sbatch >/dev/null || \
		{ apt-get update -qq && apt-get install -qq -y slurmctld slurmd slurm-client; }
	$(RUN) -m pytest -q -m slurm tests/slurm

# What needs a CUDA device.
gpu: .venv/ready
	$(RUN) -m pytest -q -m gpu

# What needs a Ray cluster; the tests start one on this machine.
ray: .venv/ready
	$(RUN) -m pytest -q -m ray

# Do the tests of the pure modules notice when one operator, argument or constant is changed?
mutants: .venv/ready
	$(PIP) -c constraints.txt -e '.[mutants]'
	nice $(RUN) -m tests.mutants

# The documentation site, docs/_build/html/index.html. The figures of its gallery are drawn once.
docs: .venv/ready docs/_build/gallery/ready
	@echo "building the site: a minute or two"
	$(RUN) -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "the site: docs/_build/html/index.html"

docs/_build/gallery/ready: docs/_ext/draw_gallery.py docs/gallery.md | .venv/ready
	@echo "a sweep for the gallery, and its figures: some minutes, once (log: docs/_build/gallery)"
	$(RUN) docs/_ext/draw_gallery.py

lint: .venv/ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: .venv/ready
	.venv/bin/mypy

# Other versions of Python: the types as of the newest, and for those that are installed the tests that start runs, where
# there is a CPU build of torch, or else the syntax. Hydra 1.3 does not start on Python 3.14.
PLACES = /usr/bin /usr/local/bin $(HOME)/.pyenv/versions/*/bin
pythons: .venv/ready
	.venv/bin/mypy --python-version 3.14
	@for python in $(wildcard $(foreach v,3.12 3.13,$(PLACES:%=%/python$v))); do \
		own=.venv/$$(basename $$python); \
		if $$python -m venv $$own && $$own/bin/python -m pip install --quiet torch==2.13.0+cpu; then \
			$$own/bin/python -m pip install --quiet -c constraints.txt -e ".[dev]" && \
			$$own/bin/python -m pytest -q -n 2 -m "not slow and not gpu and not ray and not slurm" \
				tests/test_run.py tests/test_training.py; \
		else \
			echo "$$python: no CPU build of torch, checking the syntax alone"; \
			$$python -W error -m compileall -q -f walle hydra_plugins analysis; \
		fi || exit 1; \
	done

format: .venv/ready
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache
