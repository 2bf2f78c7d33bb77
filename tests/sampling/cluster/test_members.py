"""Nodes take part, are refused, set aside and lost; a stand-in plays the cluster."""

import pytest

from walle.errors import ConfigError, Interrupted, WorkerError
from walle.sampling.cluster import members as module
from walle.sampling.cluster.connection import NodeLostError, RayNode
from walle.sampling.cluster.members import Canary, ClusterSettings, Members
from walle.sampling.cluster.node import Facts

OURS = Facts("aaaa", "EPYC", 2, {"torch": "2.13"})


class StandIn:
    """A cluster whose answers are there at once; an actor is the number of its start."""

    def __init__(self, *names):
        self.there = [RayNode(name, name, "", 4) for name in names]
        self.canaries, self.started, self.killed = {}, [], []

    def nodes(self):
        return self.there

    def start(self, node, cpus):
        self.started.append((node.name, cpus))
        return node.name, len(self.started)

    def canary(self, actor, start, snapshot):
        return ("canary", actor)

    def wait(self, references, timeout_s, enough=1):
        return references[:enough]

    def get(self, reference):
        kind, (name, _) = reference
        found = self.canaries.get(name, OURS) if kind == "canary" else ("answer", [])
        if isinstance(found, Exception):
            raise found
        return found

    def kill(self, actor):
        self.killed.append(actor)


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def said():
    return []


def members_of(cluster, said, *, nodes=None, mismatch="error", restarts=1):
    settings = ClusterSettings(None, nodes, 2, mismatch)
    return Members(cluster, settings, Canary(None, None, OURS), restarts, said.append)


def joined_by_b(clock, said):
    """A cluster of which node a takes part, and which node b has joined since."""
    cluster = StandIn("a")
    members = members_of(cluster, said)
    members.begin()
    cluster.there.append(RayNode("b", "b", "", 4))
    clock[0] += 2
    return cluster, members


def names(members):
    return [member.name for member in members.live()]


def test_every_node_takes_part_after_its_canary(said):
    cluster = StandIn("b", "a")
    members = members_of(cluster, said)
    members.begin()
    assert names(members) == ["a", "b"]
    assert cluster.started == [("b", 2), ("a", 2)]
    assert said == []


def test_no_more_nodes_than_wanted_take_part(said):
    members = members_of(StandIn("a", "b", "c"), said, nodes=2)
    members.begin()
    assert names(members) == ["a", "b"]


def test_a_cluster_without_nodes_is_refused_with_the_cure(said):
    with pytest.raises(ConfigError, match="ray start"):
        members_of(StandIn(), said).begin()


def test_a_signal_ends_the_wait_for_the_canaries(said):
    cluster, looks = StandIn("a"), []
    cluster.wait = lambda *_: looks.append("look") or []
    with pytest.raises(Interrupted):
        members_of(cluster, said).begin(lambda: len(looks) > 1)
    assert len(looks) == 2


class Late(StandIn):
    """A cluster on which the cores of some nodes are in use; a look takes 100 seconds."""

    def __init__(self, clock, late, *names):
        super().__init__(*names)
        self.clock, self.late = clock, late

    def wait(self, references, timeout_s, enough=1):
        self.clock[0] += 100
        return [each for each in references if each[1][0] not in self.late][:enough]


def test_a_run_begins_without_a_node_whose_cores_are_in_use(clock, said):
    members = members_of(Late(clock, "b", "a", "b"), said)
    members.begin()
    assert names(members) == ["a"]
    assert said == [
        "not begun within 300 s, are the cores in use? They join when they have: node b"
    ]
    assert members.take(*members.references())
    assert names(members) == ["a", "b"]


def test_a_run_does_not_begin_if_no_node_does(clock, said):
    with pytest.raises(ConfigError, match=r"not begun within 300 s, .*: node a, node b"):
        members_of(Late(clock, "ab", "a", "b"), said).begin()


def test_a_run_does_not_wait_for_ever_for_a_node_that_does_not_begin(clock, said):
    cluster, members = joined_by_b(clock, said)
    members.look()
    members.lose(*members.live())
    cluster.there.pop(0)
    for _ in range(3):
        clock[0] += 100
        members.look()
    clock[0] += 201
    with pytest.raises(WorkerError, match="has collected for 300 s"):
        members.look()


OTHER = OURS._replace(digest="bbbb", cpu_model="Xeon", versions={"torch": "2.12"})


def test_other_bits_are_refused_with_what_differs(said):
    cluster = StandIn("a", "b")
    cluster.canaries["b"] = OTHER
    why = r"node b computes other bits .*processor Xeon there, EPYC here, torch 2.12 there"
    with pytest.raises(ConfigError, match=why):
        members_of(cluster, said).begin()


def test_other_bits_are_told_where_they_may_be(said):
    cluster = StandIn("a", "b")
    cluster.canaries["b"] = OTHER
    members = members_of(cluster, said, mismatch="warn")
    members.begin()
    assert names(members) == ["a", "b"]
    assert "node b computes other bits" in said[0]


def test_a_node_that_joins_with_other_bits_gets_no_work(clock, said):
    cluster, members = joined_by_b(clock, said)
    cluster.canaries["b"] = OTHER
    members.look()
    (canary,) = members.references()
    assert not members.take(canary)
    assert names(members) == ["a"]
    assert "gets no work" in said[0]
    clock[0] += 2
    members.look()
    assert members.references() == []  # it is not asked again


def test_a_node_that_joins_becomes_live(clock, said):
    _, members = joined_by_b(clock, said)
    assert members.look() == []
    assert members.take(*members.references())
    assert names(members) == ["a", "b"]


def test_a_node_that_dies_before_it_begins_is_no_fault_of_the_others(said):
    cluster = StandIn("a", "b")
    cluster.canaries["b"] = NodeLostError("gone")
    members = members_of(cluster, said)
    members.begin()
    assert names(members) == ["a"]
    assert said == ["node b died before it began: gone"]


def test_when_all_nodes_died_before_they_began_the_refusal_says_why(said):
    cluster = StandIn("a")
    cluster.canaries["a"] = NodeLostError("references were removed")
    with pytest.raises(ConfigError, match=r"node a died .*: references were .*AUTH_MODE"):
        members_of(cluster, said).begin()


def test_code_that_fails_on_a_node_is_told(said):
    cluster = StandIn("a")
    cluster.canaries["a"] = WorkerError("no module named pond")
    with pytest.raises(ConfigError, match="node a cannot collect: no module named pond"):
        members_of(cluster, said).begin()


def test_a_node_is_overdue_when_it_has_owed_for_too_long(clock, said):
    members = members_of(StandIn("a", "b"), said)
    members.begin()
    late, quick = members.live()
    for member in (late, quick):
        member.awaited.append(("round", member.actor))
        member.since = clock[0]
    clock[0] += 5
    quick.since = clock[0]
    clock[0] += 5.5
    assert members.overdue(10.0) == [late]
    quick.awaited.clear()
    assert members.overdue(1.0) == [late]


def test_a_node_that_was_set_aside_begins_again_after_its_answer(clock, said):
    cluster = StandIn("a", "b")
    members = members_of(cluster, said)
    members.begin()
    late, _ = members.live()
    late.awaited.append(("round", late.actor))
    members.set_aside(late)
    assert names(members) == ["b"]
    (void,) = members.references()
    assert not members.take(void)
    assert "void" in said[0]
    assert cluster.killed == [late.actor]
    clock[0] += 2
    members.look()
    assert members.take(*members.references())
    assert names(members) == ["a", "b"]
    assert len(cluster.started) == 3


def test_a_spare_node_takes_the_place_of_one_that_was_set_aside(clock, said):
    cluster = StandIn("a", "b", "c")
    members = members_of(cluster, said, nodes=2)
    members.begin()
    members.set_aside(members.live()[0])
    clock[0] += 2
    members.look()
    assert members.take(members.references()[-1])
    assert names(members) == ["b", "c"]


def test_a_node_that_is_lost_too_often_is_not_used_again(clock, said):
    cluster = StandIn("a", "b")
    members = members_of(cluster, said, restarts=1)
    members.begin()
    for _ in range(2):
        members.lose(members.live()[0])
        clock[0] += 2
        members.look()
        for reference in members.references():
            members.take(reference)
    assert names(members) == ["b"]
    assert said == ["node a is not used again: sampler.restarts=1"]


def test_members_whose_nodes_have_left_are_returned(clock, said):
    cluster = StandIn("a", "b")
    members = members_of(cluster, said)
    members.begin()
    del cluster.there[0]
    assert members.look() == []  # once a second
    clock[0] += 2
    assert [member.name for member in members.look()] == ["a"]


def test_a_run_without_nodes_ends_after_a_minute(clock, said):
    cluster = StandIn("a")
    members = members_of(cluster, said)
    members.begin()
    cluster.there.clear()
    clock[0] += 2
    (gone,) = members.look()
    members.lose(gone)
    clock[0] += 2
    members.look()
    clock[0] += 59
    members.look()
    clock[0] += 2
    with pytest.raises(WorkerError, match="resume="):
        members.look()


def test_a_node_with_another_version_of_walle_is_refused(said):
    cluster = StandIn("a")
    cluster.canaries["a"] = OURS._replace(versions={"walle": "0.1.0"})
    with pytest.raises(ConfigError, match=r"node a has walle 0\.1\.0.*same version"):
        members_of(cluster, said).begin()
