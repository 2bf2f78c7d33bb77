from walle.sampling.cluster.dealing import Share, deal_lanes, spread


def test_lanes_are_dealt_in_blocks_node_after_node():
    assert deal_lanes({"a": 2, "b": 1}, 7) == {
        "a": Share((0, 1), ((0, 1, 2), (3, 4))),
        "b": Share((2,), ((5, 6),)),
    }


def test_every_lane_is_dealt_once():
    for lanes in (1, 2, 5, 8, 13):
        shares = deal_lanes({"a": 3, "b": 1, "c": 4}, lanes)
        found = [lane for share in shares.values() for own in share.lanes for lane in own]
        assert found == list(range(lanes))
        assert all(own for share in shares.values() for own in share.lanes)


def test_with_few_lanes_every_node_gets_a_sampler_before_any_gets_two():
    counts = {name: len(share.samplers) for name, share in deal_lanes({"a": 4, "b": 4}, 3).items()}
    assert counts == {"a": 2, "b": 1}


def test_a_node_without_a_lane_has_no_share():
    assert list(deal_lanes({"a": 2, "b": 2, "c": 2}, 2)) == ["a", "b"]


def test_samplers_without_a_node_go_where_the_fewest_are():
    assert spread([4, 5, 6], {"a": 2, "b": 0}) == {"b": [4, 5], "a": [6]}
