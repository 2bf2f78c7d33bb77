// Updates from a replay buffer; walle/learning/native/replay_updates.py calls the functions.

#include "ddpg.hpp"
#include "dqn.hpp"
#include "sac.hpp"
#include "xqc.hpp"

#pragma GCC visibility push(default)
extern "C" {

ReplayUpdates *replay_new_sac(const ActorCriticSettings *settings, float target_entropy) {
  return new SAC(*settings, target_entropy);
}

ReplayUpdates *replay_new_xqc(const ActorCriticSettings *settings, float target_entropy,
                              float bound) {
  return new XQC(*settings, target_entropy, bound);
}

ReplayUpdates *replay_new_ddpg(const ActorCriticSettings *settings, float scale, float bound) {
  return new DDPG(*settings, scale, bound);
}

ReplayUpdates *replay_new_dqn(const ActionValues *settings) { return new DQN(*settings); }

void replay_delete(ReplayUpdates *updates) { delete updates; }

long replay_exchanged(const ReplayUpdates *updates) { return updates->exchanged(); }

void replay_copy(ReplayUpdates *updates, float *const *fields, int to_python) {
  updates->copy_state(fields, to_python);
}

int replay_run(ReplayUpdates *updates, const float *rows, const float *noise, long blocks,
               Team *team, float *metrics) {
  [[maybe_unused]] const FlushDenormals flushed;
  return updates->run(rows, noise, blocks, team, metrics);
}
}
#pragma GCC visibility pop
