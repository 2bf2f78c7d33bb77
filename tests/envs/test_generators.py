import numpy as np
import pytest

from walle.envs.saving import PackedGenerators, pack, unpack


def generators(*seeds):
    return [np.random.Generator(np.random.PCG64(seed)) for seed in seeds]


def test_a_generator_goes_on_from_its_words():
    ours, theirs = generators(0, 1)
    ours.integers(10, size=3, dtype=np.uint32)  # leaves half a number behind
    unpack(pack(ours), theirs)
    for _ in range(3):
        assert ours.integers(10, dtype=np.uint32) == theirs.integers(10, dtype=np.uint32)
    assert ours.normal(size=9).tolist() == theirs.normal(size=9).tolist()


def test_a_generator_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="a generator of the kind Philox cannot be packed"):
        pack(np.random.Generator(np.random.Philox(0)))


def test_rows_are_packed_anew_only_where_a_generator_has_drawn():
    both, packed = generators(0, 1), PackedGenerators(2)
    first = packed.rows(both).copy()
    assert first.shape == (2, 6)
    for generator in both:
        generator.random()
    assert (packed.rows(both) == first).all()  # nobody said that they have drawn
    packed.drawn[1] = True
    found = packed.rows(both)
    assert (found[0] == first[0]).all()
    assert (found[1] == pack(both[1])).all()
    assert not packed.drawn.any()


def test_generators_take_the_rows_of_others():
    ours, theirs = generators(0, 1), generators(7, 8)
    packed = PackedGenerators(2)
    packed.load(PackedGenerators(2).rows(ours), theirs)
    assert (packed.rows(theirs) == [pack(each) for each in ours]).all()
    for our, their in zip(ours, theirs, strict=True):
        assert our.random() == their.random()


def test_rows_are_for_all_generators():
    with pytest.raises(ValueError, match="argument"):
        PackedGenerators(2).load(PackedGenerators(2).rows(generators(0, 1)), generators(0))
