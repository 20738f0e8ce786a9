"""PrefixCache: a key stands for the whole prefix, and a hit is checked against its tokens."""

import pytest

from minivllm.prefix_cache import PrefixCache, sha256


def publish_all(
    cache: PrefixCache, tokens: list[int], block_ids: list[int], **extras
) -> list[bool]:
    """Publish the full blocks of `tokens`, first to last."""
    keys, size = cache.block_hashes(tokens, **extras), cache.block_size
    return [
        cache.publish(keys, index, tokens[index * size : (index + 1) * size], block_id)
        for index, block_id in enumerate(block_ids)
    ]


def find(cache: PrefixCache, tokens: list[int], **extras) -> list[int]:
    return cache.find(tokens, cache.block_hashes(tokens, **extras))


def test_the_longest_published_prefix_is_found():
    cache = PrefixCache(block_size=2)
    assert publish_all(cache, [1, 2, 3, 4, 5, 6], [7, 3, 5]) == [True] * 3
    assert find(cache, [1, 2, 3, 4, 5, 6]) == [7, 3, 5]
    assert find(cache, [1, 2, 3, 4, 9, 9]) == [7, 3]
    assert find(cache, [1, 2, 3, 4, 5]) == [7, 3]
    assert find(cache, [1, 2, 9, 9, 5, 6]) == [7]
    assert find(cache, [9, 2, 3, 4]) == []


def test_d06_less_than_a_block_finds_nothing():
    """A key cut down to whole pages became empty, and the search went on. Eight tokens are cached
    in blocks of four; three equal tokens hit nothing and change nothing."""
    cache = PrefixCache(block_size=4)
    publish_all(cache, [1, 2, 3, 4, 5, 6, 7, 8], [0, 1])
    assert find(cache, [1, 2, 3]) == [] and find(cache, []) == []
    assert len(cache) == 2


def test_the_same_tokens_after_another_prefix_are_another_block():
    """K and V of [3, 4] depend on what came before; a key without its parent would mix them up."""
    cache = PrefixCache(block_size=2)
    publish_all(cache, [1, 2, 3, 4], [0, 1])
    assert find(cache, [3, 4]) == []
    assert find(cache, [3, 4, 3, 4]) == []
    assert find(cache, [1, 2, 1, 2]) == [0]
    keys = cache.block_hashes([3, 4, 3, 4, 3, 4])
    assert len(set(keys)) == 3


def test_keys_go_on_from_those_known():
    """Hashing in two pieces gives what hashing at once gives, and hashes no block again."""
    calls = []

    def counting(data: bytes) -> bytes:
        calls.append(data)
        return sha256(data)

    cache = PrefixCache(2, counting)
    keys = cache.block_hashes([1, 2, 3, 4, 5, 6, 7], salt="a")
    assert len(keys) == 3 and len(calls) == 3
    first = cache.block_hashes([1, 2, 3], salt="a")
    assert cache.block_hashes([1, 2, 3, 4, 5, 6, 7], first, salt="a") == keys
    assert len(calls) == 6 and calls[3:] == calls[:3]
    assert first == keys[:1]  # and the list that went in is as it was


def test_d14_a_salt_separates_tenants():
    """One tenant could find out another's prompt by its speed. Equal prompts with the salts a, b
    and none share nothing, from the first block to the last; an empty salt is a salt."""
    cache = PrefixCache(block_size=2)
    publish_all(cache, [1, 2, 3, 4], [0, 1], salt="a")
    assert find(cache, [1, 2, 3, 4], salt="b") == []
    assert find(cache, [1, 2, 3, 4], salt="") == []
    assert find(cache, [1, 2, 3, 4]) == []
    assert find(cache, [1, 2, 3, 4], salt="a") == [0, 1]
    salts = [None, "", "a", "b", "('cache_salt', 'a')"]
    assert len({key for salt in salts for key in cache.block_hashes([1, 2, 3, 4], salt=salt)}) == 10


def test_no_two_inputs_of_the_hash_run_together():
    """Key, tags and tokens are told apart by their lengths, so no salt can imitate a token."""
    seen = []
    cache = PrefixCache(1, lambda data: seen.append(data) or bytes([len(seen)]))
    cache.block_hashes([1, 2], salt="x")
    cache.block_hashes([1, 2])
    cache.block_hashes([2], salt="x")
    PrefixCache(2, cache._hash).block_hashes([1, 2], salt="x")
    assert len(set(seen)) == len(seen) == 6


def test_tokens_are_compared_on_a_hit():
    """A hash function so weak that every block has the same key: a search for other tokens would
    find block 0, were the tokens not compared."""
    cache = PrefixCache(2, hash_function=lambda data: b"same")
    assert publish_all(cache, [1, 2], [0]) == [True]
    assert find(cache, [1, 2, 3]) == [0]
    assert find(cache, [1, 3, 3]) == []
    assert find(cache, [1, 2, 1, 2]) == [0]  # the second has another parent


def test_a_collision_ends_the_chain_of_who_comes_second():
    """[8, 9] has the key of [1, 2]: it is not published, and says so; [1, 2] stays as it was."""
    cache = PrefixCache(2, hash_function=lambda data: b"same")
    publish_all(cache, [1, 2], [0])
    assert publish_all(cache, [8, 9], [1]) == [False]
    assert find(cache, [1, 2]) == [0] and find(cache, [8, 9]) == []
    assert len(cache) == 1 and 1 not in cache


def test_of_twins_the_first_stays():
    """Two requests computed the same prefix in the same step: the second block is a copy that
    nobody finds, and its chain goes on with the next block."""
    cache = PrefixCache(2)
    assert publish_all(cache, [1, 2], [4]) == [True]
    assert publish_all(cache, [1, 2, 3, 4], [6, 7]) == [True, True]
    assert find(cache, [1, 2, 3, 4]) == [4, 7]
    assert 6 not in cache and len(cache) == 2
    assert cache.forget([6]) == []  # the copy goes, the one that is found stays
    assert find(cache, [1, 2]) == [4]


def test_d01_a_forgotten_block_is_not_found():
    """A block was handed out again while its old key still led to it: a later prompt hit a block
    with other tokens in it."""
    cache = PrefixCache(2)
    publish_all(cache, [1, 2, 3, 4], [0, 1])
    assert cache.forget([5, 0]) == [0]
    assert find(cache, [1, 2, 3, 4]) == []  # block 1 is there, but nothing leads to it
    assert 0 not in cache and 1 in cache
    publish_all(cache, [1, 2], [8])
    assert find(cache, [1, 2, 3, 4]) == [8, 1]


def test_d10_the_map_is_never_larger_than_the_pool():
    """A map of keys grew with each prompt ever seen. Ten thousand prompts of one block on eight
    blocks leave eight entries."""
    cache = PrefixCache(1)
    for number in range(10_000):
        block_id = number % 8
        cache.forget([block_id])
        publish_all(cache, [number], [block_id])
        assert len(cache) <= 8 and len(cache._key_of) <= 8
    cache.check_integrity(num_blocks=8)


@pytest.mark.parametrize(
    "break_it, message",
    [
        (lambda cache: cache._key_of.pop(0), "2 keys for 1 cached blocks"),
        (lambda cache: cache._key_of.update({0: cache._key_of[1]}), "block 0 is cached under"),
    ],
)
def test_check_integrity_names_what_is_broken(break_it, message):
    cache = PrefixCache(2)
    publish_all(cache, [1, 2, 3, 4], [0, 1])
    cache.check_integrity(num_blocks=2)
    with pytest.raises(RuntimeError, match="2 keys for 2"):
        cache.check_integrity(num_blocks=1)
    break_it(cache)
    with pytest.raises(RuntimeError, match=message):
        cache.check_integrity(num_blocks=2)
