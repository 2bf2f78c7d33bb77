"""Learning in C++, for the commonest networks: libraries that are compiled in seconds on first use.

`vectors.hpp` and `panels.hpp` hold matrix products, `mlp.hpp` fully connected networks, `adam.hpp`
Adam's step, `shards.hpp` and `team.hpp` what several learners divide. `ppo.cpp` passes over a round
with them; `sac.cpp` and `ddpg.cpp` take updates from a replay buffer (`actor_critic.hpp`). Python
compiles and loads them in `library.py`, and calls them in `ppo_epochs.py` and `replay_updates.py`.
Everything else is compiled from its PyTorch code (`walle/learning/compiled.py`).
"""
