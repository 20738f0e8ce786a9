"""The prefix cache: full blocks found again by what they hold and by all that came before it.

A block's key (vLLM: block hash) is a sha256 over the key of the block before, extras such as a
tenant's salt, and the block's tokens. So equal keys mean equal prefixes from the first token on:
K and V of a token depend on its whole prefix, not on the token alone. Invariant: an entry's block
holds exactly the KV of its chain of tokens, until the block is handed out anew, when `forget` drops
the entry first; so the map never outgrows the pool.

Reference counts are none of its business: a block that nobody holds stays findable here while it
waits in the free list, least recently used first in line to be overwritten.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

HashFunction = Callable[[bytes], bytes]
ROOT = b""  # what stands for "the block before" of a first block


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@dataclass(frozen=True)
class CachedBlock:
    """A published block: where it lies, the key of the block before it, and what it holds."""

    block_id: int
    parent: bytes
    token_ids: tuple[int, ...]


class PrefixCache:
    """Key -> published block, and back.

    >>> cache = PrefixCache(block_size=2)
    >>> keys = cache.block_hashes([1, 2, 3, 4, 5])        # the 5 fills no block
    >>> cache.publish(keys, 0, [1, 2], block_id=7)
    True
    >>> cache.find([1, 2, 3, 4, 5], keys)                 # block 1 is not published yet
    [7]
    >>> cache.forget([7])
    [7]
    >>> cache.find([1, 2, 3, 4, 5], keys)
    []
    """

    def __init__(self, block_size: int, hash_function: HashFunction = sha256) -> None:
        self.block_size = block_size
        self._hash = hash_function
        self._blocks: dict[bytes, CachedBlock] = {}
        self._key_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._key_of

    def entry(self, block_id: int) -> CachedBlock | None:
        """What a block holds; None when it is not published. For views."""
        return self._blocks[self._key_of[block_id]] if block_id in self._key_of else None

    def block_hashes(
        self, token_ids: Sequence[int], known: Iterable[bytes] = (), salt: str | None = None
    ) -> list[bytes]:
        """The keys of all full blocks of `token_ids`; `known` are the first of them, made before.

        The salt enters the first key, and through the chain all others: tenants share nothing.
        """
        keys = list(known)
        for index in range(len(keys), len(token_ids) // self.block_size):
            parent = keys[-1] if keys else ROOT
            extras = (("cache_salt", salt),) if salt is not None and not keys else ()
            keys.append(self._key(parent, self._tokens(token_ids, index), extras))
        return keys

    def find(self, token_ids: Sequence[int], keys: Sequence[bytes]) -> list[int]:
        """The blocks of the longest published prefix.

        The tokens are compared too: equal keys of different tokens (a collision) are no hit.
        """
        block_ids = []
        for index, key in enumerate(keys):
            entry = self._blocks.get(key)
            parent = keys[index - 1] if index else ROOT
            if entry is None or not self._same(entry, parent, self._tokens(token_ids, index)):
                break
            block_ids.append(entry.block_id)
        return block_ids

    def publish(
        self, keys: Sequence[bytes], index: int, tokens: Sequence[int], block_id: int
    ) -> bool:
        """Make logical block `index` findable, now that its KV is written.

        Returns False when other tokens have this key (a collision): the chain must not be published
        further. When the same tokens are published in another block (a twin), that one stays, and
        the chain goes on.
        """
        parent = keys[index - 1] if index else ROOT
        entry = self._blocks.get(keys[index])
        if entry is not None:
            return self._same(entry, parent, tuple(tokens))
        self._blocks[keys[index]] = CachedBlock(block_id, parent, tuple(tokens))
        self._key_of[block_id] = keys[index]
        return True

    def forget(self, block_ids: Iterable[int]) -> list[int]:
        """Drop the entries of blocks about to be overwritten; returns the blocks that had one."""
        evicted = [block_id for block_id in block_ids if block_id in self._key_of]
        for block_id in evicted:
            del self._blocks[self._key_of.pop(block_id)]
        return evicted

    def check_integrity(self, num_blocks: int) -> None:
        """Raise RuntimeError unless the two maps mirror each other within the pool."""
        if len(self._blocks) != len(self._key_of) or len(self._blocks) > num_blocks:
            raise RuntimeError(f"{len(self._blocks)} keys for {len(self._key_of)} cached blocks")
        for block_id, key in self._key_of.items():
            if self._blocks[key].block_id != block_id:
                raise RuntimeError(f"block {block_id} is cached under another block's key")

    def _tokens(self, token_ids: Sequence[int], index: int) -> tuple[int, ...]:
        return tuple(token_ids[index * self.block_size : (index + 1) * self.block_size])

    def _key(self, parent: bytes, tokens: tuple[int, ...], extras: tuple) -> bytes:
        # The lengths stand in front, so that no two inputs give the same bytes.
        tags = repr(extras).encode()
        header = array("q", [len(parent), len(tags), len(tokens)]).tobytes()
        return self._hash(header + parent + tags + array("q", tokens).tobytes())

    @staticmethod
    def _same(entry: CachedBlock, parent: bytes, tokens: tuple[int, ...]) -> bool:
        return entry.parent == parent and entry.token_ids == tokens
