# Runs the commands of the README: docker run --rm walle make sweep, docker run --rm walle make test
FROM python:3.11-slim

# make runs the targets, git tells the tests which files there are, g++ compiles the gradient steps,
# swig builds Box2D, libegl1 and the two after it draw videos
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ git libegl1 libgl1-mesa-dri libopengl0 make swig \
    && rm -rf /var/lib/apt/lists/*

RUN useradd --uid 1000 --create-home walle && install --directory --owner=walle /work
USER walle
WORKDIR /work

# Torch first, in the build without CUDA, so that a change of the code does not fetch it again.
RUN python -m venv .venv \
    && .venv/bin/python -m pip install --no-cache-dir \
        --index-url https://download.pytorch.org/whl/cpu 'torch>=2.6'
COPY --chown=walle . .
RUN .venv/bin/python -m pip install --no-cache-dir -c constraints.txt \
        -e '.[box2d,dev,docs,export,optuna,ray,tensorboard,video,wandb]' \
    && touch .venv/ready

ENV PATH=/work/.venv/bin:$PATH
CMD ["make", "sweep"]
