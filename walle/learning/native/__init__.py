"""Learning in C++, for the commonest networks: libraries that are compiled in seconds on first use.

`vectors.hpp` and `panels.hpp` hold matrix products, `mlp.hpp` fully connected networks, `adam.hpp`
Adam's step, `shards.hpp` and `team.hpp` what several learners divide. `ppo.cpp` passes over a round
with them and with advantages (`estimates.hpp`); `sac.cpp` and `ddpg.cpp` take updates from a replay
buffer (`actor_critic.hpp`). Python compiles and loads them in `library.py`, and calls them in
`ppo_epochs.py`, with what `ppo_library.py` fills, and in `replay_updates.py`.
Everything else learns in PyTorch (`walle/learning/step.py`).
"""
