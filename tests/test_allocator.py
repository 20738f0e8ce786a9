"""BlockPool: literal block ids, the order of the free list, and who may free what."""

import random

import pytest

from minivllm.allocator import BlockPool


def test_blocks_are_taken_from_the_front_and_come_back_at_the_end():
    """Six blocks, two requests: the free list is a queue, in the order the blocks were freed."""
    pool = BlockPool(6)
    assert pool.get_new_blocks(2) == [0, 1]
    assert pool.get_new_blocks(3) == [2, 3, 4]
    pool.free_blocks([1, 0])
    assert pool.free_block_ids == [5, 1, 0]
    pool.free_blocks([4, 3, 2])
    assert pool.free_block_ids == [5, 1, 0, 4, 3, 2]
    assert pool.get_new_blocks(4) == [5, 1, 0, 4]
    assert pool.ref_cnt == [1, 1, 0, 0, 1, 1]
    assert (pool.num_blocks, pool.num_free_blocks) == (6, 2)


def test_a_taken_number_of_blocks_is_all_or_none():
    """Two free, three wanted: the error has both numbers, and the two stay free."""
    pool = BlockPool(4)
    pool.get_new_blocks(2)
    with pytest.raises(ValueError, match="3 blocks wanted, 2 free"):
        pool.get_new_blocks(3)
    assert pool.free_block_ids == [2, 3]
    assert pool.get_new_blocks(2) == [2, 3]
    assert pool.get_new_blocks(0) == []


def test_touch_takes_a_free_block_out_of_the_middle():
    """A prefix hit on block 1, which waits in the free list between 0 and 2."""
    pool = BlockPool(4)
    pool.touch([1])
    assert pool.free_block_ids == [0, 2, 3]
    assert pool.ref_cnt == [0, 1, 0, 0]


def test_a_block_is_free_when_its_last_holder_has_left():
    """Three holders of block 0; it enters the free list once, after the third."""
    pool = BlockPool(2)
    pool.get_new_blocks(1)
    pool.touch([0, 0])
    assert (pool.ref_cnt[0], pool.num_shared_blocks) == (3, 1)
    pool.free_blocks([0])
    assert (pool.free_block_ids, pool.num_shared_blocks) == ([1], 1)
    pool.free_blocks([0])
    assert (pool.free_block_ids, pool.num_shared_blocks) == ([1], 0)
    pool.free_blocks([0])
    assert pool.free_block_ids == [1, 0]


def test_d02_a_second_free_raises():
    """A copy-on-write once dropped the old reference twice: at the append, and again with the
    table. Here the second one has nobody's reference to take and says so."""
    pool = BlockPool(2)
    pool.get_new_blocks(2)
    pool.free_blocks([1])
    with pytest.raises(ValueError, match="block 1 is freed, but it is free already"):
        pool.free_blocks([1])
    assert pool.free_block_ids == [1]


def test_d08_blocks_in_use_do_not_count_as_candidates():
    """An eviction loop counted the candidates it had skipped as in use, and stopped early. The
    oldest blocks 0 and 1 are in use; two blocks are wanted, and 2 and 3 are found."""
    pool = BlockPool(4)
    pool.get_new_blocks(4)
    pool.free_blocks([2, 3])
    assert pool.get_new_blocks(2) == [2, 3]


def test_a_pool_without_blocks_is_refused():
    with pytest.raises(ValueError, match="num_blocks must be >= 1, got 0"):
        BlockPool(0)


@pytest.mark.parametrize(
    "break_it, message",
    [
        (lambda pool: pool.ref_cnt.__setitem__(0, 2), "block 0 has ref_cnt 2, but 1 holders"),
        (lambda pool: pool._free.__setitem__(0, None), "block 0 has ref_cnt 1, but is in the free"),
        (lambda pool: pool._free.__delitem__(3), "block 3 has ref_cnt 0, but is not in"),
        (lambda pool: setattr(pool, "num_shared_blocks", 1), "num_shared_blocks is 1"),
    ],
)
def test_check_integrity_names_what_is_broken(break_it, message):
    """Each rule of the pool, broken by hand."""
    pool = BlockPool(4)
    pool.get_new_blocks(2)
    pool.check_integrity([0, 1])
    break_it(pool)
    with pytest.raises(RuntimeError, match=message):
        pool.check_integrity([0, 1])


def test_thousands_of_random_operations_lose_no_block():
    """Against a model of one list of holders: counts, shared blocks and the free list agree."""
    rng = random.Random(0)
    pool, held = BlockPool(9), []
    for _ in range(5000):
        dice = rng.random()
        if dice < 0.4 and pool.num_free_blocks:
            held += pool.get_new_blocks(rng.randint(1, pool.num_free_blocks))
        elif dice < 0.6:
            block_id = rng.randrange(9)
            pool.touch([block_id])
            held.append(block_id)
        else:
            rng.shuffle(held)
            given = [held.pop() for _ in range(rng.randint(0, len(held)))]
            pool.free_blocks(given)
        pool.check_integrity(held)
        assert pool.num_free_blocks + len(set(held)) == 9
    pool.free_blocks(held)
    assert sorted(pool.free_block_ids) == list(range(9)) and not any(pool.ref_cnt)
