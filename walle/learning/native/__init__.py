"""Learning in C++, for fully connected networks: libraries that are compiled on first use.

`vectors.hpp` and `panels.hpp` hold matrix products, `mlp.hpp` fully connected networks, `adam.hpp`
Adam's step, `shards.hpp` what several learners divide. Two libraries use them:

- `passes.cpp` makes passes over the rows of a round, with the losses of policies and critics; the
  distributions of actions are in `policies.hpp`;
- `replay.cpp` takes updates from a replay buffer, with a header for each algorithm.

`library.py` compiles and loads them; `passes.py` and `replay_updates.py` call them.
Everything else learns in PyTorch (`walle/learning/step.py`).
"""
