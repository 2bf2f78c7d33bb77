"""A gradient step of networks that have no parameters in common, such as a policy and a critic.

The gradient of a sum of losses falls into a part for each network. A team of learners divides the
networks. What it exchanges at every step is a few numbers: the norm of the gradient alone couples
the networks. So even steps on few rows can be divided. Everything is computed network by network,
so the parameters are the same bits for any number of learners.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value
from torch.nn import functional

from walle.learning.adam import AdamSettings, AdamState, adam_step, scaled_down, step_sizes
from walle.learning.compiled import Function, compile_function
from walle.learning.gradient_steps import (
    Batch,
    Loss,
    eager_gradient,
    leaves,
    minibatches,
    rebuild,
)
from walle.learning.sharing.team import ALONE, Team, dealt


class Network(NamedTuple):
    """One of the networks.

    Attributes:
        size: number of its parameters, P_k; they lie behind those of the networks before it.
        rows: selects what its loss needs of a batch.
        loss: its part of the loss, of its parameters [P_k] and its rows.
        info: names of the loss's info, in their order.
    """

    size: int
    rows: Callable[[Batch], Batch]
    loss: Loss
    info: tuple[str, ...]


class Programs(NamedTuple):
    """A network's compiled functions, for rows of these shapes."""

    gradient: Function
    apply: Function
    shapes: list[torch.Size]


class SeparateStep:
    """A gradient step on several networks, which a team of learners divides.

    Between `opened` and `closed` a learner has the parameters and Adam's states of its own networks
    alone.
    """

    def __init__(self, networks: Sequence[Network], settings: AdamSettings) -> None:
        """Takes eager steps until `compile`, alone until `team` is set."""
        self._networks, self._settings = networks, settings
        self.team: Team = ALONE
        self.names = ("loss", "grad_norm", *(name for each in networks for name in each.info))
        self._programs: list[Programs] = []
        self._width = 2 + max(len(network.info) for network in networks)

    @property
    def _mine(self) -> range:
        """The numbers of this learner's networks."""
        return dealt(len(self._networks), self.team.rank, self.team.size)

    def compile(self, vector: Tensor, batch: Batch, description: str | None = None) -> None:
        """Compiles the gradient of each network, and its step.

        Args:
            vector: parameters [P].
            batch: an example of a minibatch.
            description: describes the loss, see `compile_function`.
        """
        parts = zip(self._networks, self._parts(vector), strict=True)
        self._programs = [self._compiled(*part, batch, description) for part in parts]

    def _compiled(
        self, network: Network, vector: Tensor, batch: Batch, description: str | None
    ) -> Programs:
        rows = network.rows(batch)

        def gradient(vector: Tensor, *columns: Tensor) -> tuple[Tensor, Tensor]:
            of = grad_and_value(network.loss, has_aux=True)
            grad, (value, info) = of(vector, rebuild(rows, iter(columns)))
            return grad, self._numbers(grad, value, info)

        of_loss = description and f"gradient for {network.info} of {description}"
        state = AdamState.zeros_like(vector).tensors()
        numbers = vector.new_zeros(len(self._networks), self._width)
        example = (vector, *state, vector.new_zeros(()), torch.zeros_like(vector), numbers)
        of_step = f"step {self._settings} of {len(vector)} with {self.names}"
        return Programs(
            compile_function(gradient, (vector, *leaves(rows)), of_loss),
            compile_function(self._apply, example, of_step),
            [x.shape for x in leaves(rows)],
        )

    def deal(self, data: Batch, order: Tensor | None, size: int) -> list[tuple[Batch, ...]]:
        """The rows for this learner's networks, of every minibatch; see `minibatches`."""
        own = [minibatches(self._networks[k].rows(data), order, size) for k in self._mine]
        return list(zip(*own, strict=True))

    def opened(self, vector: Tensor, state: AdamState) -> tuple[Any, Any]:
        """The parameters and Adam's states of this learner's networks: a list of each."""
        columns = [self._parts(x) for x in (vector, *_moments(state))]
        own = [[x[k] for x in columns] for k in self._mine]
        return [x[0] for x in own], [_state(state.steps, x[1:]) for x in own]

    def closed(self, vectors: Any, states: Any) -> tuple[Tensor, AdamState]:
        """The parameters [P] and Adam's state of all networks, those of other learners too."""
        count = 1 + len(_moments(states[0]))
        longest = max(network.size for network in self._networks)
        first = self._mine.start

        def row(k: int) -> Tensor:
            own = (vectors[k - first], *_moments(states[k - first]))
            return torch.cat([functional.pad(x, (0, longest - len(x))) for x in own])

        rows = self.team.gather(len(self._networks), count * longest, row)
        rows = rows.view(len(self._networks), count, longest)
        whole = [
            torch.cat(
                [x[: network.size] for x, network in zip(column, self._networks, strict=True)]
            )
            for column in rows.unbind(1)
        ]
        return whole[0], _state(states[0].steps, whole[1:])

    def __call__(
        self, vectors: list[Tensor], states: list[AdamState], rate: Tensor, batch: Sequence[Batch]
    ) -> tuple[list[Tensor], list[AdamState], Tensor]:
        """Takes a step on this learner's networks; see `GradientStep`."""
        gradients: list[Tensor] = []
        first = self._mine.start

        def numbers_of(k: int) -> Tensor:
            gradient, numbers = self._gradient_of(k, vectors[k - first], batch[k - first])
            gradients.append(gradient)
            return numbers

        numbers = self.team.gather(len(self._networks), self._width, numbers_of)
        new_vectors, new_states = [], []
        for k, vector, state, gradient in zip(self._mine, vectors, states, gradients, strict=True):
            apply = self._programs[k].apply if self._programs else self._apply
            new, *adam, found, _ = apply(vector, *state.tensors(), rate, gradient, numbers)
            new_vectors.append(new)
            new_states.append(AdamState(*adam))
        return new_vectors, new_states, found

    def _gradient_of(self, k: int, vector: Tensor, rows: Batch) -> tuple[Tensor, Tensor]:
        """The gradient [P_k] of a network, and its row of numbers."""
        columns = [x.contiguous() for x in leaves(rows)]
        if self._programs and [x.shape for x in columns] == self._programs[k].shapes:
            gradient, numbers = self._programs[k].gradient(vector, *columns)
            return gradient, numbers
        gradient, loss, info = eager_gradient(self._networks[k].loss, vector, rows)
        return gradient, self._numbers(gradient, loss.detach(), info).detach()

    def _numbers(self, gradient: Tensor, loss: Tensor, info: Any) -> Tensor:
        """The gradient's squared norm, the loss and its info, padded with zeros."""
        numbers = torch.stack([gradient.square().sum(), loss, *info.values()])
        return functional.pad(numbers, (0, self._width - len(numbers)))

    def _apply(self, vector: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        """Steps with `gradient` [P_k], given the `numbers` of all networks.

        Returns also the step's numbers and, for inductor, Adam's step sizes; see `CompiledStep`.
        """
        *adam, rate, gradient, numbers = rest
        state = AdamState(*adam)
        norm = numbers[:, 0].sum().sqrt()
        info = [x[2 : 2 + len(of.info)] for x, of in zip(numbers, self._networks, strict=True)]
        found = torch.cat((torch.stack((numbers[:, 1].sum(), norm)), *info))
        sizes = step_sizes(state.steps + 1, rate, self._settings)
        clipped = scaled_down(gradient, norm, self._settings.max_grad_norm)
        vector, state = adam_step(vector, clipped, state, sizes, self._settings)
        return vector, *state.tensors(), found, sizes

    def _parts(self, x: Tensor) -> list[Tensor]:
        """Cuts [P] into a part for each network."""
        sizes = [network.size for network in self._networks]
        return [part.contiguous() for part in torch.split(x, sizes)]


def _moments(state: AdamState) -> list[Tensor]:
    """The tensors of the state that are as long as the parameters."""
    return [x for x in (state.mean, state.square, state.largest) if x is not None]


def _state(steps: Tensor, moments: Sequence[Tensor]) -> AdamState:
    mean, square, *largest = moments
    return AdamState(mean, square, steps, *largest)
