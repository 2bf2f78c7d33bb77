import pytest
import torch

from walle.learning.adam import AdamSettings, AdamState, TrainState, adam_step, clip_by_norm


def test_adam_agrees_with_torch():
    torch.manual_seed(0)
    ours = torch.randn(5)
    theirs = ours.clone().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=0.01, eps=1e-8)
    state = TrainState.start(ours)
    for _ in range(50):
        grad = torch.randn(5)
        theirs.grad = grad.clone()
        optimizer.step()
        state, _ = adam_step(state, grad, 0.01, AdamSettings())
    torch.testing.assert_close(state.vector, theirs.detach())


def test_a_step_by_hand():
    """The second of two equal gradients of 2: m̂ = 2 and v̂ = 4, so θ moves by α / (1 + ε / 2)."""
    settings = AdamSettings(beta1=0.5, beta2=0.75, epsilon=0.1)
    state, _ = adam_step(TrainState.start(torch.zeros(1)), torch.tensor([2.0]), 0.3, settings)
    after, norm = adam_step(state, torch.tensor([2.0]), 0.3, settings)
    torch.testing.assert_close(after.vector - state.vector, torch.tensor([-0.3 * 2 / 2.1]))
    assert (norm.item(), after.adam.steps.item()) == (2.0, 2.0)
    assert after.adam.square.item() == pytest.approx(4 * 0.4375)  # 1 - 0.75²


def test_clip_by_norm_by_hand():
    clipped, norm = clip_by_norm(torch.tensor([3.0, 4.0]), 1.0)
    assert norm.item() == 5.0
    torch.testing.assert_close(clipped, torch.tensor([0.6, 0.8]))
    untouched, _ = clip_by_norm(torch.tensor([0.3, 0.4]), 1.0)
    torch.testing.assert_close(untouched, torch.tensor([0.3, 0.4]))


def test_a_saved_state_is_restored():
    state, _ = adam_step(TrainState.start(torch.ones(3)), torch.ones(3), 0.1, AdamSettings())
    restored = AdamState.restored(state.adam.state_dict(), "cpu")
    assert all(map(torch.equal, restored, state.adam))
