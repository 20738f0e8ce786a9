"""The KV cache: K and V of all layers, kept in blocks of `block_size` token slots (block = page).

Slot `s` is place `s % block_size` of block `s // block_size`. Which request owns which block is not
known here (page_table.py); neither is which slots hold anything, so an unwritten slot may hold
any bits and nobody may read it. Legend: L layers, N blocks, BS block_size, KH KV heads, D head_dim.
"""

import torch
from torch import Tensor


class KVCache:
    """Tensors `key` and `value` [L, N, BS, KH, D]: write tokens, gather blocks, copy a block.

    Raises ValueError when a size is below 1.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        sizes = (num_layers, num_blocks, block_size, num_kv_heads, head_dim)
        if min(sizes) < 1:
            raise ValueError(
                "KV cache sizes (layers, blocks, block_size, kv_heads, head_dim) must be "
                f"at least 1, got {sizes}"
            )
        self.num_blocks, self.block_size = num_blocks, block_size
        num_slots = num_blocks * block_size
        # One slot more than the blocks hold, the last: an index of -1 lands there, so that
        # `write` needs neither a test nor, on a GPU, a wait for its answer.
        shape = (num_layers, num_slots + 1, num_kv_heads, head_dim)
        key_slots = torch.zeros(shape, dtype=dtype, device=device)  # [L, N * BS + 1, KH, D]
        value_slots = torch.zeros(shape, dtype=dtype, device=device)  # [L, N * BS + 1, KH, D]
        blocks = (num_blocks, block_size)
        self.key = key_slots[:, :-1].unflatten(1, blocks)  # [L, N, BS, KH, D]
        self.value = value_slots[:, :-1].unflatten(1, blocks)  # [L, N, BS, KH, D]
        self._layers = list(zip(key_slots, value_slots, strict=True))  # L pairs [N * BS + 1, KH, D]

    @staticmethod
    def bytes_per_block(
        num_layers: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> int:
        """Bytes that one block takes in all layers: K and V, counted by KV heads, not query heads.

        >>> KVCache.bytes_per_block(30, 16, 3, 64, torch.float32)  # SmolLM2-135M
        737280
        """
        return 2 * num_layers * block_size * num_kv_heads * head_dim * dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks: `num_blocks` times `bytes_per_block`."""
        return self.key.nbytes + self.value.nbytes

    def write(self, layer: int, slot_mapping: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k and v [T, KH, D] of T tokens in slots `slot_mapping` [T] int64; -1 stores none.

        k and v may be strided views (a slice of a fused q, k, v). Slots are distinct; what lies
        outside the blocks is the caller's fault (page_table.py and attention.py refuse it).
        """
        key_slots, value_slots = self._layers[layer]
        key_slots.index_put_((slot_mapping,), k)
        value_slots.index_put_((slot_mapping,), v)

    def gather(self, layer: int, block_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return copies of K and V, each [n * BS, KH, D], of the n blocks `block_ids`, in order."""
        k = self.key[layer].index_select(0, block_ids).flatten(0, 1)  # [n * BS, KH, D]
        v = self.value[layer].index_select(0, block_ids).flatten(0, 1)  # [n * BS, KH, D]
        return k, v

    def copy_block(self, src: int, dst: int) -> None:
        """Copy block `src` over block `dst` in all layers, for copy-on-write.

        Raises ValueError for a block that the cache does not have.
        """
        if not (0 <= src < self.num_blocks and 0 <= dst < self.num_blocks):
            raise ValueError(f"copy block {src} to {dst}: the cache has {self.num_blocks} blocks")
        self.key[:, dst] = self.key[:, src]  # [L, BS, KH, D]
        self.value[:, dst] = self.value[:, src]  # [L, BS, KH, D]
