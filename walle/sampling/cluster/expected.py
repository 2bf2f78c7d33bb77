"""Which answers count: those of a pool that still exists, for the round that it owes."""

from __future__ import annotations

from typing import NamedTuple

from walle.sampling.cluster.answer import Header


class Verdict(NamedTuple):
    """Whether an answer counts.

    Attributes:
        fault: why it does not count; empty if it does.
        stale: whether it merely came too late, or twice, so that its node is sound.
    """

    fault: str
    stale: bool = False


class Expected:
    """The rounds that the pools of samplers owe, by the pools' incarnations.

    A pool begins with an incarnation that no other pool ever had. So an answer from before its
    node was set aside is never taken for one of the pool that collects the same lanes now.
    """

    def __init__(self) -> None:
        """Expects nothing."""
        self._round: dict[int, int] = {}
        self._lanes: dict[int, tuple[int, ...]] = {}

    def begin(self, incarnation: int, round_: int, lanes: tuple[int, ...]) -> None:
        """Expects answers of a new pool, from that round on."""
        self._round[incarnation], self._lanes[incarnation] = round_, lanes

    def end(self, incarnation: int) -> None:
        """Expects nothing more of that pool."""
        del self._round[incarnation], self._lanes[incarnation]

    def judge(self, header: Header, version: int) -> Verdict:
        """Decides whether an answer counts; the pool's next round is expected if it does.

        Args:
            header: the answer's header.
            version: the policy's version that the pool was given for that round.
        """
        what = f"the answer for round {header.round}"
        owed = self._round.get(header.incarnation)
        if owed is None:
            return Verdict(f"{what} came after its node had been set aside", stale=True)
        if header.round < owed:
            return Verdict(f"{what} came twice", stale=True)
        if header.round > owed:
            return Verdict(f"{what} came before that for round {owed}")
        if header.version != version:
            return Verdict(f"{what} is of policy {header.version} instead of {version}")
        if header.lanes != self._lanes[header.incarnation]:
            return Verdict(f"{what} has other lanes than its samplers")
        self._round[header.incarnation] += 1
        return Verdict("")
