"""Arrays in shared memory that belongs to no file system, and the slots there."""

import gc
import os
from contextlib import suppress
from types import SimpleNamespace

import pytest

from walle.errors import ConfigError
from walle.sampling import slots
from walle.sampling.slots import Arena
from walle.system.forkserver import start_fork_server
from walle.system.shared_memory import SharedMemory


class Shape:
    bytes = 3 * 10**9


def test_slots_that_memory_cannot_hold_are_refused_with_the_cure(monkeypatch):
    monkeypatch.setattr(slots, "memory_bytes", lambda: 12 * 10**9)
    slots.check_memory([Shape, Shape], 2, batch_size=100)
    with pytest.raises(ConfigError) as refused:
        slots.check_memory([Shape, Shape], 3, batch_size=100)
    assert str(refused.value) == (
        "batch_size=100 with sampler.slots=3 needs 18 GB of shared memory, and this machine or its "
        "container has 12; use a smaller batch_size, or a smaller sampler.max_lag"
    )


LAYOUT = [((3,), "int64"), ((2, 5), "float32"), ((0, 4), "uint8"), ((7,), "bool")]


def test_arrays_have_the_shapes_of_the_layout_and_are_zero():
    arrays = Arena(LAYOUT).arrays()
    assert [(array.shape, array.dtype.name) for array in arrays] == LAYOUT
    assert not any(array.any() for array in arrays)


def test_arrays_are_aligned_and_do_not_overlap():
    arrays = Arena(LAYOUT).arrays()
    for number, array in enumerate(arrays, 1):
        assert array.ctypes.data % 64 == 0 or not array.size
        array[...] = number
    for number, array in enumerate(arrays, 1):
        assert (array == array.dtype.type(number)).all()


def test_every_call_gives_views_of_the_same_memory():
    arena = Arena(LAYOUT)
    arena.arrays()[0][:] = [1, 2, 3]
    assert arena.arrays()[0].tolist() == [1, 2, 3]


def test_nothing_at_all_has_a_place_too():
    assert [array.size for array in Arena([((0,), "int64")]).arrays()] == [0]
    assert Arena([]).arrays() == []


def test_a_full_dev_shm_is_no_matter():
    arena = Arena(LAYOUT)
    place = os.readlink(f"/proc/self/fd/{arena.memory._descriptor}")
    assert place.startswith("/memfd:")  # a file there would end a run by SIGBUS when it is full


def add_one(arena):
    arena.arrays()[0][:] += 1


def test_another_process_sees_and_changes_the_numbers():
    arena = Arena(LAYOUT)
    numbers = arena.arrays()[0]
    numbers[:] = [1, 2, 3]
    process = start_fork_server().Process(target=add_one, args=[arena])
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert numbers.tolist() == [2, 3, 4]
    process.close()


def test_the_memory_lives_as_long_as_an_array_and_the_descriptor_as_the_arena():
    arena = Arena([((1000,), "float64")])
    (array,) = arena.arrays()
    array[:] = 5
    file = os.fstat(arena.memory._descriptor)
    assert descriptors_of(file) == 2  # mmap has a descriptor of its own
    del arena
    gc.collect()
    assert (array == 5).all()
    assert descriptors_of(file) == 1
    del array
    gc.collect()
    assert descriptors_of(file) == 0


def descriptors_of(file):
    """How many of this process's descriptors refer to the anonymous `file`, a stat result."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one of the listing itself is closed again
            found += os.path.samestat(os.fstat(int(descriptor)), file)
    return found


def test_more_arrays_are_seen_by_both_processes():
    ours, theirs = Arena(LAYOUT), Arena.__new__(Arena)
    descriptor = SimpleNamespace(detach=lambda: os.dup(ours.memory._descriptor))
    theirs.memory = SharedMemory.__new__(SharedMemory)  # as unpickling does there
    theirs.memory.__setstate__({"_reserve": False, "_descriptor": descriptor})
    theirs.layout = LAYOUT
    assert theirs.arrays()[0].tolist() == [0, 0, 0]
    for length in (100_000, 2):
        for arena in (ours, theirs):
            arena.layout = [((length,), "int64")]
        ours.arrays()[0][:] = length
        assert theirs.arrays()[0].tolist() == [length] * length
