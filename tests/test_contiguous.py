"""Contiguous memory: the buddy allocator splits, merges, never overlaps and loses nothing."""

import random

import pytest

from minivllm.baselines.contiguous import BuddyAllocator, BuddyPool, next_power_of_two


def test_a_piece_is_split_until_it_fits_and_merges_when_both_halves_are_free():
    """Textbook: 16 slots; 3 tokens take the first 4, which leaves a 4 and an 8."""
    memory = BuddyAllocator(16)
    assert memory.take(3) == (0, 4)
    assert memory.free_pieces == [(4, 4), (8, 8)]
    assert memory.take(4) == (4, 4)
    memory.give_back(0)
    assert memory.free_pieces == [(0, 4), (8, 8)]  # 4..7 is in use: no merge
    memory.give_back(4)
    assert memory.free_pieces == [(0, 16)]  # 4 + 4 -> 8, 8 + 8 -> 16


def test_a_small_piece_is_preferred_to_splitting_a_large_one():
    memory = BuddyAllocator(16)
    start, _ = memory.take(4)
    assert memory.take(2) == (4, 2)  # out of the free 4, not of the 8
    memory.give_back(start)
    assert memory.take(4) == (0, 4)


def test_neighbours_that_are_no_buddies_do_not_merge():
    """Slots 4..7 and 8..11 touch, but are halves of different pieces: external fragmentation."""
    memory = BuddyAllocator(16)
    for _ in range(4):
        memory.take(4)
    memory.give_back(4)
    memory.give_back(8)
    assert memory.num_free == 8 and memory.largest_free == 4
    assert memory.take(5) is None


def test_a_size_that_is_no_power_of_two_is_cut_into_aligned_pieces():
    """The paper's 15,728 slots hold seven pieces of 2048, and 1,392 slots are left over."""
    memory = BuddyAllocator(15728)
    assert memory.free_pieces[:4] == [(0, 8192), (8192, 4096), (12288, 2048), (14336, 1024)]
    pieces = [memory.take(2048) for _ in range(8)]
    assert pieces.count(None) == 1 and memory.num_free == 1392


@pytest.mark.parametrize("wrong", [0, -1])
def test_sizes_below_one_are_refused(wrong: int):
    with pytest.raises(ValueError, match=">= 1"):
        BuddyAllocator(wrong)
    with pytest.raises(ValueError, match=">= 1"):
        BuddyAllocator(4).take(wrong)


def test_only_what_was_taken_can_be_given_back():
    memory = BuddyAllocator(8)
    memory.take(4)
    with pytest.raises(ValueError, match="slot 2"):
        memory.give_back(2)
    memory.give_back(0)
    with pytest.raises(ValueError, match="slot 0"):
        memory.give_back(0)


def check_tiling(memory: BuddyAllocator) -> None:
    """Pieces in use and free ones tile the memory; each is aligned; no free buddies are left."""
    pieces = sorted([*memory.taken.items(), *memory.free_pieces])
    end = 0
    for start, size in pieces:
        assert start == end, f"gap or overlap at slot {end}"
        assert size == next_power_of_two(size) and start % size == 0
        end = start + size
    assert end == memory.num_slots
    assert memory.num_free == sum(size for _, size in memory.free_pieces)
    free = set(memory.free_pieces)
    assert memory.largest_free == max((size for _, size in free), default=0)
    assert not any((start ^ size, size) in free for start, size in free), "buddies not merged"


@pytest.mark.parametrize("seed", range(60))
def test_random_work_never_overlaps_and_gives_all_memory_back(seed: int):
    """Thousands of operations: a take fails only when no free piece is large enough."""
    rng = random.Random(seed)
    memory = BuddyAllocator(rng.randint(1, 300))
    whole = memory.free_pieces
    starts: list[int] = []
    for _ in range(120):
        if starts and rng.random() < 0.45:
            memory.give_back(starts.pop(rng.randrange(len(starts))))
        else:
            wanted = rng.randint(1, rng.choice([4, 40, 400]))
            largest = memory.largest_free
            piece = memory.take(wanted)
            assert (piece is None) == (wanted > largest)
            if piece is not None:
                assert wanted <= piece[1] < 2 * wanted
                starts.append(piece[0])
        check_tiling(memory)
    for start in starts:
        memory.give_back(start)
    assert memory.free_pieces == whole and memory.num_free == memory.num_slots


# ---- the pool ----


def test_blocks_of_one_grant_are_consecutive_and_the_rest_of_the_piece_is_lost():
    pool = BuddyPool(16)
    assert pool.get_new_blocks(5) == [0, 1, 2, 3, 4]
    assert (pool.num_free_blocks, pool.num_available_blocks) == (8, 8)
    assert pool.get_new_blocks(8) == list(range(8, 16))
    with pytest.raises(ValueError, match="1 blocks wanted, the largest free piece has 0"):
        pool.get_new_blocks(1)
    pool.free_blocks([4, 3, 2, 1, 0])
    assert pool.num_free_blocks == 8 and pool.free_block_ids == list(range(8))


def test_contiguous_blocks_are_neither_shared_nor_freed_twice():
    pool = BuddyPool(4)
    blocks = pool.get_new_blocks(2)
    with pytest.raises(ValueError, match="cannot be shared"):
        pool.touch(blocks)
    pool.free_blocks(blocks)
    with pytest.raises(ValueError, match="free already"):
        pool.free_blocks(blocks)


def test_the_pools_rules_notice_a_lost_and_an_unheld_block():
    pool = BuddyPool(8)
    blocks = pool.get_new_blocks(3)
    pool.check_integrity(blocks)
    with pytest.raises(RuntimeError, match="2 blocks are held, 3 are counted"):
        pool.check_integrity(blocks[:2])
    pool.memory.give_back(blocks[0])
    with pytest.raises(RuntimeError, match="in no piece"):
        pool.check_integrity(blocks)
