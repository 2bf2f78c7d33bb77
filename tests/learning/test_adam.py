import torch

from walle.learning.adam import AdamSettings, AdamState, adam_step, clip_by_norm, step_sizes


def test_adam_agrees_with_torch():
    torch.manual_seed(0)
    ours = torch.randn(5)
    theirs = ours.clone().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=0.01, eps=1e-8)
    state = AdamState.zeros_like(ours)
    for _ in range(50):
        grad = torch.randn(5)
        theirs.grad = grad.clone()
        optimizer.step()
        sizes = step_sizes(state.steps + 1, torch.tensor(0.01), AdamSettings())
        ours, state = adam_step(ours, grad, state, sizes, AdamSettings())
    torch.testing.assert_close(ours, theirs.detach())


def test_step_sizes_by_hand():
    settings = AdamSettings(beta1=0.5, beta2=0.75, epsilon=0.1)
    sizes = step_sizes(torch.tensor(2.0), torch.tensor(0.3), settings)
    root = 0.4375**0.5  # of 1 - 0.75 ** 2
    torch.testing.assert_close(sizes, torch.tensor([0.3 * root / 0.75, 0.1 * root]))


def test_clip_by_norm_by_hand():
    clipped, norm = clip_by_norm(torch.tensor([3.0, 4.0]), 1.0)
    assert norm.item() == 5.0
    torch.testing.assert_close(clipped, torch.tensor([0.6, 0.8]))
    untouched, _ = clip_by_norm(torch.tensor([0.3, 0.4]), 1.0)
    torch.testing.assert_close(untouched, torch.tensor([0.3, 0.4]))


def test_a_saved_state_is_restored():
    state = AdamState.zeros_like(torch.ones(3))
    assert len(AdamState.restored(state.state_dict(), "cpu").tensors()) == 3
