"""KVCacheManager: literal block ids through admission, growth, sharing, copying and swapping."""

import pytest
from helpers import greedy, prompt

from minivllm.config import SchedulerConfig
from minivllm.kv_cache_manager import KVCacheManager
from minivllm.request import Request
from minivllm.step_records import BlockOp


def manager(num_blocks: int = 8, block_size: int = 4, **limits) -> KVCacheManager:
    return KVCacheManager(SchedulerConfig(num_blocks, block_size, **limits))


def enter(kv: KVCacheManager, tokens: list[int], name: str = "r", **more) -> Request:
    """A request that has been admitted with room for all its tokens, none of them computed yet."""
    request = Request(name, tokens, greedy(8), kv.block_size, **more)
    kv.allocate_initial(request, len(tokens), kv.initial_need(request, len(tokens)))
    return request


def compute(kv: KVCacheManager, request: Request) -> None:
    """Pretend that a step has run all of its tokens."""
    request.num_computed_tokens = request.num_tokens
    kv.publish_full_blocks(request)


def run(kv: KVCacheManager, tokens: list[int], **more) -> Request:
    request = enter(kv, tokens, **more)
    compute(kv, request)
    return request


def grow(kv: KVCacheManager, request: Request, token: int) -> list[int] | None:
    """Append one token and run it; the blocks that this took."""
    request.append_token(token)
    taken = kv.allocate_slots(request, 1)
    if taken is not None:
        compute(kv, request)
    return taken


def free_list(kv: KVCacheManager) -> list[int]:
    return kv.pool.free_block_ids


def test_admission_takes_blocks_from_the_front():
    """Six tokens in blocks of four: two blocks; nothing changes while one only asks."""
    kv = manager()
    request = Request("r", prompt(6), greedy(8), 4)
    need = kv.initial_need(request, 6)
    assert (need.cached_block_ids, need.num_blocks) == ([], 2)
    assert free_list(kv) == [0, 1, 2, 3, 4, 5, 6, 7] and request.block_table.block_ids == []
    kv.allocate_initial(request, 6, need)
    assert request.block_table.block_ids == [0, 1]
    assert free_list(kv) == [2, 3, 4, 5, 6, 7]
    assert request.num_computed_tokens == 0


def test_a_block_is_taken_when_the_last_one_is_full():
    """Six tokens, then one by one: the seventh and eighth fit, the ninth opens block 2."""
    kv = manager()
    request = run(kv, prompt(6))
    assert [grow(kv, request, token) for token in (7, 8, 9, 10)] == [[], [], [2], []]
    assert request.block_table.block_ids == [0, 1, 2]


def test_block_size_one_takes_a_block_for_each_token():
    kv = manager(block_size=1)
    request = run(kv, prompt(2))
    assert [grow(kv, request, token) for token in (3, 4)] == [[2], [3]]


def test_no_room_is_none_and_changes_nothing():
    """Nine more tokens need two blocks and one is free: none is taken."""
    kv = manager(num_blocks=3)
    request = run(kv, prompt(8))
    assert kv.allocate_slots(request, 5) is None
    assert request.block_table.block_ids == [0, 1] and free_list(kv) == [2]
    assert kv.allocate_slots(request, 4) == [2]


def test_freed_blocks_queue_up_tail_first():
    """The head of a prefix is what others can use: it is overwritten last."""
    kv = manager()
    request = run(kv, prompt(12))
    kv.free(request)
    assert free_list(kv) == [3, 4, 5, 6, 7, 2, 1, 0]
    assert request.block_table.block_ids == []


# --- the prefix cache ---------------------------------------------------------------------------


def test_a_second_prompt_shares_the_full_blocks_of_the_first():
    """Ten tokens, eight of them common: two blocks are shared, one is new."""
    kv = manager(enable_prefix_caching=True)
    first = run(kv, prompt(10), name="a")
    second = enter(kv, prompt(8) + [50, 51], name="b")
    assert first.block_table.block_ids == [0, 1, 2]
    assert second.block_table.block_ids == [0, 1, 3]
    assert second.num_computed_tokens == 8
    assert kv.pool.ref_cnt == [2, 2, 1, 1, 0, 0, 0, 0]


def test_what_is_found_in_the_free_list_counts_as_needed():
    """A cached block that nobody holds leaves the free list: admission must have room for it."""
    kv = manager(num_blocks=4, enable_prefix_caching=True)
    first = run(kv, prompt(10))
    assert kv.initial_need(Request("b", prompt(10), greedy(8), 4), 10).num_blocks == 1
    kv.free(first)
    need = kv.initial_need(Request("b", prompt(10), greedy(8), 4), 10)
    assert (need.cached_block_ids, need.num_blocks) == ([0, 1], 3)


def test_hits_leave_the_free_list_and_new_blocks_come_from_its_front():
    kv = manager(num_blocks=4, enable_prefix_caching=True)
    kv.free(run(kv, prompt(10)))
    assert free_list(kv) == [3, 2, 1, 0]
    second = enter(kv, prompt(10))
    assert second.block_table.block_ids == [0, 1, 3] and free_list(kv) == [2]


def test_d01_no_hit_on_a_block_that_holds_other_tokens_now():
    """A (5 tokens) runs and ends; B (8 other tokens) takes both blocks; A comes again. Its old key
    once led into B's block. E(4, 2): the second A finds nothing, B's first block is findable."""
    kv = manager(num_blocks=2, enable_prefix_caching=True)
    kv.free(run(kv, prompt(5)))
    other = run(kv, prompt(8, first=50))
    assert other.block_table.block_ids == [1, 0]  # A's tail was freed before its head
    assert kv.initial_need(Request("again", prompt(5), greedy(1), 4), 5).cached_block_ids == []
    assert len(kv.prefix_cache) == 2 and kv.take_evicted() == [0]
    kv.free(other)
    need = kv.initial_need(Request("b", prompt(9, first=50), greedy(1), 4), 9)
    assert need.cached_block_ids == [1, 0]


def test_d05_the_deepest_block_of_a_hit_is_protected_too():
    """A walk from the matched node to the root took its first step too early: the node itself was
    left unlocked. Here both blocks gain a holder, and pressure cannot take them."""
    kv = manager(num_blocks=4, enable_prefix_caching=True)
    kv.free(run(kv, prompt(8)))
    request = enter(kv, prompt(9))
    assert request.block_table.block_ids == [0, 1, 2]
    assert kv.pool.ref_cnt == [1, 1, 1, 0]
    taken = enter(kv, prompt(4, first=90), name="pressure")
    assert taken.block_table.block_ids == [3] and free_list(kv) == []


def test_d11_of_a_whole_prompt_the_last_token_is_computed():
    """With all of a prompt cached there is no query left, and kernels crashed on length 0. P = 8
    twice in blocks of four: the second time 4 tokens are cached; the block that is computed again
    does not break the chain of a longer prompt."""
    kv = manager(num_blocks=16, enable_prefix_caching=True)
    kv.free(run(kv, prompt(8)))
    second = enter(kv, prompt(8))
    assert second.num_computed_tokens == 4 and second.block_table.block_ids == [0, 2]
    compute(kv, second)  # block 2 is a twin of block 1
    assert enter(kv, prompt(12), name="longer").block_table.block_ids[:2] == [0, 1]


@pytest.mark.parametrize("length, cached", [(4, 0), (5, 4), (7, 4), (8, 4), (9, 8)])
def test_d11_around_the_edges_of_a_block(length: int, cached: int):
    """However long the prompt, at least one token stays to be computed."""
    kv = manager(enable_prefix_caching=True)
    kv.free(run(kv, prompt(12)))
    assert enter(kv, prompt(length)).num_computed_tokens == cached


def test_d12_a_block_is_found_only_after_it_is_written():
    """Two equal prompts arrived before the first step: the second once skipped blocks that the
    first had not computed yet. Neither finds anything; after the step of the first they are there.
    """
    kv = manager(num_blocks=16, enable_prefix_caching=True)
    first, second = enter(kv, prompt(12), name="a"), enter(kv, prompt(12), name="b")
    assert first.num_computed_tokens == second.num_computed_tokens == 0
    assert len(kv.prefix_cache) == 0
    compute(kv, first)
    assert enter(kv, prompt(12), name="c").block_table.block_ids[:2] == [0, 1]


def test_d12_a_block_filled_by_two_chunks_is_published_after_the_second():
    """Six of eight tokens are computed: one block is full, and only that one is findable."""
    kv = manager(enable_prefix_caching=True)
    request = enter(kv, prompt(8))
    for num_computed, num_cached in [(3, 0), (4, 1), (6, 1), (8, 2)]:
        request.num_computed_tokens = num_computed
        kv.publish_full_blocks(request)
        assert len(kv.prefix_cache) == num_cached


def test_d14_salts_share_no_block():
    """Hits of the same prompt with salt a, b and a again: 0, 0 and 4 tokens."""
    kv = manager(num_blocks=16, enable_prefix_caching=True)
    hits = []
    for salt in ("a", "b", "a"):
        request = enter(kv, prompt(6), cache_salt=salt)
        hits.append(request.num_computed_tokens)
        compute(kv, request)
        kv.free(request)
    assert hits == [0, 0, 4]


def test_output_is_found_by_the_next_turn_of_a_chat():
    """Five of prompt and three of output fill two blocks; the next turn begins with both."""
    kv = manager(enable_prefix_caching=True)
    request = run(kv, prompt(5))
    for token in (60, 61, 62):
        grow(kv, request, token)
    kv.free(request)
    assert enter(kv, prompt(5) + [60, 61, 62, 70]).num_computed_tokens == 8


def test_without_the_cache_nothing_is_hashed():
    kv = manager()
    request = run(kv, prompt(8))
    assert kv.prefix_cache is None and request.block_hashes == []
    kv.free(request)
    assert enter(kv, prompt(8)).num_computed_tokens == 0


def test_a_collision_publishes_nothing_and_is_harmless():
    """All keys collide: what is found is only ever the very same tokens."""
    kv = manager(num_blocks=16, enable_prefix_caching=True)
    kv.prefix_cache._hash = lambda data: b"same"
    run(kv, prompt(9), name="a")
    other = run(kv, prompt(9, first=50), name="b")
    assert len(kv.prefix_cache) == 1
    assert other.num_published > other.num_tokens  # it has given up
    assert enter(kv, prompt(5, first=50), name="c").num_computed_tokens == 0
    assert enter(kv, prompt(5), name="d").num_computed_tokens == 4


# --- fork and copy-on-write ---------------------------------------------------------------------


def fork(kv: KVCacheManager, parent: Request) -> Request:
    child = parent.fork(1)
    kv.fork(parent, child)
    return child


def test_the_first_writer_of_a_shared_block_gets_a_copy():
    """Six tokens: block 0 is full, block 1 half full. The parent writes first and moves to block 2;
    then the child is alone in block 1 and writes there without a copy."""
    kv = manager()
    parent = run(kv, prompt(6))
    child = fork(kv, parent)
    assert child.block_table.block_ids == [0, 1] and kv.pool.ref_cnt[:2] == [2, 2]
    assert grow(kv, parent, 7) == [2]
    assert parent.block_table.block_ids == [0, 2]
    assert kv.take_block_ops() == [BlockOp("copy", 1, 2)]
    assert kv.pool.ref_cnt[:3] == [2, 1, 1]
    assert grow(kv, child, 8) == []
    assert child.block_table.block_ids == [0, 1] and kv.take_block_ops() == []


def test_full_blocks_are_never_copied():
    """Eight tokens end on a block edge: both samples open a block of their own."""
    kv = manager()
    parent = run(kv, prompt(8))
    child = fork(kv, parent)
    assert (grow(kv, parent, 9), grow(kv, child, 10)) == ([2], [3])
    assert kv.take_block_ops() == [] and kv.pool.ref_cnt[:4] == [2, 2, 1, 1]


def test_a_fork_leaves_out_blocks_that_are_reserved_but_not_written():
    """Six tokens of a table of three blocks are computed: two are shared."""
    kv = manager()
    parent = enter(kv, prompt(12))
    parent.num_computed_tokens = 6
    child = fork(kv, parent)
    assert child.block_table.block_ids == [0, 1] and kv.pool.ref_cnt[:3] == [2, 2, 1]


def test_d02_a_shared_block_is_freed_once_by_each_holder():
    """The old reference of a copied block was dropped at the append and again with the table.
    Fork, append, finish B, finish A: the counts go 2, 1, 0 and each block is free once."""
    kv = manager(num_blocks=4)
    parent = run(kv, prompt(6))
    child = fork(kv, parent)
    grow(kv, child, 7)
    assert child.block_table.block_ids == [0, 2] and kv.pool.ref_cnt == [2, 1, 1, 0]
    kv.free(child)
    assert kv.pool.ref_cnt == [1, 1, 0, 0] and free_list(kv) == [3, 2]
    kv.free(parent)
    assert kv.pool.ref_cnt == [0, 0, 0, 0] and free_list(kv) == [3, 2, 1, 0]
    with pytest.raises(ValueError, match="block 1 is freed, but it is free already"):
        kv.pool.free_blocks([1])


def test_d07_a_copy_and_a_new_block_are_had_both_or_not_at_all():
    """A fork ran out after copying part of its blocks. The next three tokens of a sample at 6 need
    a copy of the shared block and one more, and one block is free: the answer is no, and nothing
    has moved; neither the source's blocks nor the counts nor the list of copies."""
    kv = manager(num_blocks=3)
    parent = run(kv, prompt(6))
    child = fork(kv, parent)
    assert kv.allocate_slots(child, 3) is None
    assert free_list(kv) == [2] and kv.pool.ref_cnt == [2, 2, 0]
    assert child.block_table.block_ids == parent.block_table.block_ids == [0, 1]
    assert kv.take_block_ops() == []
    assert kv.allocate_slots(child, 2) == [2]  # the copy alone fits


# --- preemption ---------------------------------------------------------------------------------


def test_recompute_gives_all_blocks_back_and_starts_over():
    kv = manager()
    request = run(kv, prompt(6))
    assert kv.preempt(request) == 0
    assert request.num_computed_tokens == 0 and request.num_lost_tokens == 6
    assert free_list(kv) == [2, 3, 4, 5, 6, 7, 1, 0] and kv.take_block_ops() == []


def swapping(num_host_blocks: int, **more) -> KVCacheManager:
    return manager(preemption_mode="swap", num_host_blocks=num_host_blocks, **more)


def test_swap_moves_each_block_out_and_in_again():
    """Blocks 0 and 1 go to host blocks 0 and 1; on its return it gets blocks 2 to 4, and its six
    tokens need no computing."""
    kv = swapping(2)
    request = run(kv, prompt(6))
    assert kv.preempt(request) == 2
    assert kv.take_block_ops() == [BlockOp("swap_out", 0, 0), BlockOp("swap_out", 1, 1)]
    assert request.host_block_ids == [0, 1] and request.block_table.block_ids == []
    assert kv.host_pool.num_free_blocks == 0 and kv.pool.num_free_blocks == 8
    need = kv.initial_need(request, 9)
    assert (need.cached_block_ids, need.num_blocks) == ([], 3)
    kv.allocate_initial(request, 9, need)
    assert request.block_table.block_ids == [2, 3, 4]
    assert kv.take_block_ops() == [BlockOp("swap_in", 0, 2), BlockOp("swap_in", 1, 3)]
    assert request.num_computed_tokens == 6 and request.host_block_ids == []
    assert kv.host_pool.free_block_ids == [0, 1]


def test_swap_moves_only_what_is_written():
    """Five of twelve tokens are computed: two of three blocks hold something."""
    kv = swapping(4)
    request = enter(kv, prompt(12))
    request.num_computed_tokens = 5
    assert kv.preempt(request) == 2 and request.host_block_ids == [0, 1]


def test_all_blocks_of_a_request_are_swapped_or_none():
    """Three blocks, two host blocks: it is recomputed instead, and the host pool is untouched."""
    kv = swapping(2)
    request = run(kv, prompt(9))
    assert kv.preempt(request) == 0
    assert request.host_block_ids == [] and request.num_computed_tokens == 0
    assert kv.host_pool.num_free_blocks == 2 and kv.take_block_ops() == []


def test_a_shared_block_is_swapped_as_a_copy():
    """The parent goes on in the blocks that its sample has left; the sample comes back to blocks
    of its own."""
    kv = swapping(4)
    parent = run(kv, prompt(6))
    child = fork(kv, parent)
    assert kv.preempt(child) == 2
    assert kv.pool.ref_cnt[:2] == [1, 1] and parent.block_table.block_ids == [0, 1]
    kv.allocate_initial(child, 6, kv.initial_need(child, 6))
    assert child.block_table.block_ids == [2, 3]


def test_host_blocks_go_back_with_a_request_that_ends_while_swapped_out():
    kv = swapping(2)
    request = run(kv, prompt(6))
    kv.preempt(request)
    kv.free(request)
    assert kv.host_pool.num_free_blocks == 2 and request.host_block_ids == []


def test_a_swapped_block_stays_findable_where_it_was():
    """Its old place still holds the KV until it is taken again; after its return the request's own
    block is a twin, and is not needed for the next hit."""
    kv = swapping(2, enable_prefix_caching=True)
    request = run(kv, prompt(6))
    kv.preempt(request)
    assert kv.initial_need(Request("b", prompt(6), greedy(8), 4), 6).cached_block_ids == [0]


def test_no_host_pool_without_a_use_for_it():
    assert manager(num_host_blocks=4).host_pool is None
    assert manager(preemption_mode="swap").host_pool is None


def test_a_block_shared_before_it_is_written_breaks_a_rule():
    """What no fork may do: hand on a reserved block that holds nothing yet."""
    kv = manager()
    parent = enter(kv, prompt(8))
    parent.num_computed_tokens = 4
    child = fork(kv, parent)
    kv.check_integrity([parent, child])
    child.block_table.block_ids.append(1)
    kv.pool.touch([1])
    with pytest.raises(RuntimeError, match="shares block 1, not written yet"):
        kv.check_integrity([parent, child])
