"""Where the workers of a sweep run in a Ray cluster: how many, and how many cores each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from walle.launcher.settings import RayConf


class Node(NamedTuple):
    """A node of the cluster on which workers can run.

    Attributes:
        identity: Ray's number of the node.
        name: host and the first digits of the number, for messages.
        cores: that Ray may give away there.
        free_cores: those of them that nobody has.
        free_gpus: likewise.
    """

    identity: str
    name: str
    cores: int
    free_cores: int
    free_gpus: int = 0


class Placement(NamedTuple):
    """A worker before it starts.

    Attributes:
        cores: that it gets.
        node: where it is to run; None for any node, once that has so many free cores.
    """

    cores: int
    node: Node | None


def placements(
    needs: Sequence[int | None], nodes: Sequence[Node], settings: RayConf, *, compared: bool
) -> list[Placement]:
    """The workers of a sweep; at least one, and no more than jobs.

    Args:
        needs: cores of each job to run; None for all cores of a node.
        nodes: of the cluster.
        settings: of Ray.
        compared: the jobs' times are compared, so they run one at a time on one node.
    """
    fitting = [node for node in nodes if node.cores and node.free_gpus >= settings.gpus]
    if compared or None in needs:
        most = settings.workers or (1 if compared else len(needs))
        largest = sorted(fitting, key=lambda node: (node.free_cores < node.cores, -node.cores))
        found, least = [Placement(node.cores, node) for node in largest], 1
    else:
        least = settings.cores or max((need or 1 for need in needs), default=1)
        most = settings.workers or len(needs)
        wanted = sum(min(need or 1, least) for need in needs)
        found = _packed(fitting, least, wanted, settings)
    found = found[: min(most, len(needs))]
    missing = min(settings.workers or 1, len(needs)) - len(found)
    return found + [Placement(least, None)] * missing


def _packed(nodes: Sequence[Node], least: int, wanted: int, settings: RayConf) -> list[Placement]:
    """Workers on free cores, the emptiest node first, until all jobs can run at once.

    Args:
        nodes: with enough GPUs.
        least: cores of a worker.
        wanted: cores of all jobs.
        settings: of Ray.
    """
    found: list[Placement] = []
    for node in sorted(nodes, key=lambda node: -node.free_cores):
        many = node.free_cores // least
        if settings.gpus:
            many = min(many, node.free_gpus // settings.gpus)
        if many and settings.cores is None:
            own = [max(least, min(node.free_cores, wanted))]
        else:
            own = [least] * min(many, -(-wanted // least))
        found += [Placement(cores, node) for cores in own if wanted > 0]
        wanted -= sum(own)
    return found
