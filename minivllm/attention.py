"""Attention in plain torch: a dense oracle, and the same over a paged KV cache.

One step is a ragged batch: the queries of all requests stand one after another on one axis T,
with no padding. A request with one query is a decode, one with more is a (chunk of a) prefill;
they stand in any order. The K and V of a step are in the cache before its attention runs.
Invariant: a slot that holds no token of the request is never read, whatever bits it holds.

Legend: T tokens in this step, R requests in this step, N blocks, BS block_size, MB most blocks of
a request, H / KH query / KV heads, G = H // KH, D head_dim, S KV positions.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

# Gathered lengths are rounded up to this many positions: the kernels then add the same numbers in
# the same order however long a request's neighbours are. In float32, on the CPUs we tried, a result
# is the same to the last bit up to 384 positions; beyond, the matrix kernels split their sums.
GATHER_MULTIPLE = 16
# Decodes are gathered in groups of like length. A new group begins where it saves this many slots,
# which is about what the operator calls of one more group cost on a CPU.
SLOTS_WORTH_A_GROUP = 1024


def dense_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Causal attention of one sequence with everything in the open: the definition.

    q [T, H, D] are the last T of the S positions of k and v [S, KH, D]; query head h reads KV head
    h // G. Returns [T, H, D] in q's dtype, computed in float32.
    """
    num_queries, num_positions = q.shape[0], k.shape[0]
    group = q.shape[1] // k.shape[1]
    k = k.float().repeat_interleave(group, dim=1)  # [S, H, D]
    v = v.float().repeat_interleave(group, dim=1)  # [S, H, D]
    scores = torch.einsum("thd,shd->hts", q.float(), k) * scale  # [H, T, S]
    key_position = torch.arange(num_positions, device=q.device)  # [S]
    query_position = key_position[num_positions - num_queries :, None]  # [T, 1]
    scores = scores.masked_fill(key_position > query_position, -torch.inf)  # [H, T, S]
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))  # [H, T, S]
    weights = weights / weights.sum(-1, keepdim=True)  # [H, T, S]
    return torch.einsum("hts,shd->thd", weights, v).to(q.dtype)  # [T, H, D]


def slots_of(block_tables: Tensor, rows: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Slots of `positions` of the requests `rows` in block_tables [R, MB] (page_table.py's rule).

    `rows` and `positions` broadcast to one shape, which is that of the result.

    >>> slots_of(torch.tensor([[7, 2]]), torch.tensor(0), torch.tensor([0, 3, 4, 5]), block_size=4)
    tensor([28, 31,  8,  9])
    """
    blocks = block_tables[rows, positions // block_size].long()  # like positions
    return blocks * block_size + positions % block_size


@dataclass
class Gather:
    """Requests whose K and V are copied into one rectangle of [n, S] slots, for one SDPA call."""

    tokens: slice | Tensor  # which of the T tokens are its queries
    slots: Tensor  # [n * S] int64; beyond a request's end its own first slot again, masked
    mask: Tensor  # 0 or -inf, added to the scores: [n, 1, 1, S], of a chunk [queries, S]
    is_chunk: bool  # one request with many queries; else n requests with one query each
    k: Tensor  # [n * S, KH, D], filled anew in each layer
    v: Tensor  # [n * S, KH, D], the same


@dataclass
class AttentionMetadata:
    """Where each token and request of one step lies; the same for all layers (vLLM's name)."""

    query_start_loc: Tensor  # [R + 1] int32: queries of request r are tokens loc[r] .. loc[r+1]-1
    seq_lens: Tensor  # [R] int32: KV length, this step included
    slot_mapping: Tensor  # [T] int64: where the new K and V go
    block_tables: Tensor  # [R, MB] int32; padding is -1 and never read
    longest_chunk: int = 1  # most queries of a request
    _plan: list[Gather] | None = field(default=None, repr=False)

    @staticmethod
    def build(
        query_lens: list[int],
        seq_lens: list[int],
        block_tables: list[list[int]],
        block_size: int,
        device: torch.device | str = "cpu",
    ) -> "AttentionMetadata":
        """Make the metadata of R requests from their query lengths, KV lengths and block tables.

        Raises ValueError for no query, more queries than KV positions, or too few blocks.

        >>> step = AttentionMetadata.build([1, 3], [6, 3], [[7, 2], [5]], block_size=4)
        >>> step.query_start_loc.tolist(), step.slot_mapping.tolist()
        ([0, 1, 4], [9, 20, 21, 22])
        """
        for r, (n, s, blocks) in enumerate(zip(query_lens, seq_lens, block_tables, strict=True)):
            if not 1 <= n <= s:
                raise ValueError(f"row {r} of the step has {n} queries for {s} KV positions")
            if s > len(blocks) * block_size or min(blocks) < 0:
                raise ValueError(
                    f"row {r} of the step has {s} KV positions, which blocks {blocks} "
                    f"of {block_size} slots do not hold"
                )
        width = max(map(len, block_tables), default=0)
        padded = [[*blocks, *[-1] * (width - len(blocks))] for blocks in block_tables]
        tables = torch.tensor(padded, dtype=torch.int32)  # [R, MB]
        num_queries = torch.tensor(query_lens, dtype=torch.int64)  # [R]
        lens = torch.tensor(seq_lens, dtype=torch.int64)  # [R]
        ends = num_queries.cumsum(0)  # [R]
        rows = torch.arange(len(lens)).repeat_interleave(num_queries)  # [T]
        positions = torch.arange(len(rows)) + (lens - ends)[rows]  # [T]
        return AttentionMetadata(
            query_start_loc=F.pad(ends, (1, 0)).int().to(device),  # [R + 1]
            seq_lens=lens.int().to(device),  # [R]
            slot_mapping=slots_of(tables, rows, positions, block_size).to(device),  # [T]
            block_tables=tables.to(device),  # [R, MB]
            longest_chunk=max(query_lens, default=1),
        )

    def plan(self, k_cache: Tensor) -> list[Gather]:
        """What `paged_attention` gathers from a cache like k_cache [N, BS, KH, D].

        The first layer of a step makes the plan, the others use it again.
        """
        if self._plan is None:
            starts, lens = self.query_start_loc.tolist(), self.seq_lens.tolist()
            decodes = [r for r in range(len(lens)) if starts[r + 1] - starts[r] == 1]
            chunks = [[r] for r in range(len(lens)) if starts[r + 1] - starts[r] > 1]
            groups = [*group_by_length(decodes, lens), *chunks]
            widths = [_rounded_up(max(lens[r] for r in rows)) for rows in groups]
            num_slots = max(len(rows) * S for rows, S in zip(groups, widths, strict=True))
            # One buffer for all gathers: fresh memory in each layer costs more than the copying.
            buffers = k_cache.new_empty(2, num_slots, *k_cache.shape[2:])  # [2, n * S, KH, D]
            self._plan = [
                _make_gather(self, starts, rows, S, k_cache.shape[1], buffers)
                for rows, S in zip(groups, widths, strict=True)
            ]
        return self._plan


def _rounded_up(length: int) -> int:
    return -(-length // GATHER_MULTIPLE) * GATHER_MULTIPLE


def group_by_length(rows: list[int], lens: list[int]) -> list[list[int]]:
    """Split `rows` where that saves much padding; lens[r] is the length of row r.

    >>> group_by_length([0, 1, 2, 3], lens=[90, 2000, 120, 1900])
    [[1, 3], [0, 2]]
    """
    groups: list[list[int]] = []
    for i, r in enumerate(sorted(rows, key=lambda r: -lens[r])):
        if i == 0 or (len(rows) - i) * (lens[groups[-1][0]] - lens[r]) > SLOTS_WORTH_A_GROUP:
            groups.append([])
        groups[-1].append(r)
    return [sorted(group) for group in groups]


def _make_gather(
    metadata: AttentionMetadata,
    starts: list[int],
    rows: list[int],
    width: int,
    block_size: int,
    buffers: Tensor,
) -> Gather:
    """Lay out some decodes, or one chunk, as rows of `width` positions."""
    row = torch.tensor(rows, device=buffers.device)[:, None]  # [n, 1]
    seq_lens = metadata.seq_lens[row]  # [n, 1]
    position = torch.arange(width, device=buffers.device)  # [S]
    kept = torch.where(position < seq_lens, position, 0)  # [n, S]
    slots = slots_of(metadata.block_tables, row, kept, block_size).flatten()  # [n * S]

    first, end = starts[rows[0]], starts[rows[-1] + 1]
    tokens: slice | Tensor = slice(first, end)
    is_chunk = starts[rows[0] + 1] - first > 1
    if is_chunk:
        from_end = torch.arange(first - end, 0, device=buffers.device)[:, None]  # [tokens, 1]
        query_position = seq_lens + from_end  # [tokens, 1]
    else:
        query_position = seq_lens[:, :, None, None] - 1  # [n, 1, 1, 1]
        if end - first != len(rows):  # other requests stand between these
            tokens = metadata.query_start_loc[row[:, 0]].long()  # [n]
    hidden = position > query_position  # [tokens, S] of a chunk, [n, 1, 1, S] of decodes
    mask = torch.zeros_like(hidden, dtype=buffers.dtype)  # like hidden
    mask.masked_fill_(hidden, -torch.inf)
    return Gather(tokens, slots, mask, is_chunk, *buffers[:, : len(slots)])


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, metadata: AttentionMetadata, scale: float
) -> Tensor:
    """Attention of a ragged batch over K and V that lie in blocks, equal to the reference below.

    q [T, H, D], k_cache and v_cache [N, BS, KH, D] of q's dtype -> [T, H, D]. The query heads of
    one KV head are given to SDPA as query positions of a decode, and as heads of a chunk, so that
    K and V are never repeated. A cache whose blocks are not contiguous is read right, but slowly.
    """
    num_kv_heads, head_dim = k_cache.shape[2:]
    q = q.unflatten(1, (num_kv_heads, -1))  # [T, KH, G, D]
    k_slots, v_slots = k_cache.flatten(0, 1), v_cache.flatten(0, 1)  # [N * BS, KH, D]
    out = torch.empty_like(q, memory_format=torch.contiguous_format)  # [T, KH, G, D]
    for part in metadata.plan(k_cache):
        k = torch.index_select(k_slots, 0, part.slots, out=part.k)  # [n * S, KH, D]
        v = torch.index_select(v_slots, 0, part.slots, out=part.v)  # [n * S, KH, D]
        attend = _attend_chunk if part.is_chunk else _attend_decodes
        out[part.tokens] = attend(q[part.tokens], k, v, part.mask, scale)  # [tokens, KH, G, D]
    return out.flatten(1, 2)  # [T, H, D]


def _attend_decodes(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """q [n, KH, G, D], one query a request; k, v [n * S, KH, D] -> [n, KH, G, D]."""
    k = k.unflatten(0, (len(q), -1)).transpose(1, 2)  # [n, KH, S, D]
    v = v.unflatten(0, (len(q), -1)).transpose(1, 2)  # [n, KH, S, D]
    return _sdpa(q, k, v, mask, scale)  # [n, KH, G, D]


def _attend_chunk(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """q [tokens, KH, G, D] of one request; k, v [S, KH, D] -> [tokens, KH, G, D]."""
    q = q.permute(1, 2, 0, 3)  # [KH, G, tokens, D]
    k = k.transpose(0, 1)[:, None].expand(-1, q.shape[1], -1, -1)  # [KH, G, S, D]
    v = v.transpose(0, 1)[:, None].expand(-1, q.shape[1], -1, -1)  # [KH, G, S, D]
    return _sdpa(q, k, v, mask, scale).permute(2, 0, 1, 3)  # [tokens, KH, G, D]


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """torch's attention of q [.., .., n, D]; on a CPU never with one or two queries left over.

    It works on blocks of 32 queries. One or two take another matrix kernel, whose last bits
    differ, and then a chunk's last tokens would depend on where the prompt was cut.
    """
    num_queries = q.shape[2]
    if q.is_cpu and num_queries % 32 in (1, 2):
        q = F.pad(q, (0, 0, 0, 2))  # [.., .., n + 2, D]
        if mask.shape[-2] > 1:
            mask = F.pad(mask, (0, 0, 0, 2))  # [n + 2, S]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)  # like q
    return out[:, :, :num_queries]  # [.., .., n, D]


def paged_attention_reference(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, metadata: AttentionMetadata, scale: float
) -> Tensor:
    """Paged attention said plainly, one request at a time: the definition of every faster path.

    Shapes as in `paged_attention`.
    """
    starts, block_size = metadata.query_start_loc.tolist(), k_cache.shape[1]
    outs = []
    for r, seq_len in enumerate(metadata.seq_lens.tolist()):
        blocks = metadata.block_tables[r, : -(-seq_len // block_size)].long()  # [blocks in use]
        k = k_cache[blocks].flatten(0, 1)[:seq_len]  # [S, KH, D]
        v = v_cache[blocks].flatten(0, 1)[:seq_len]  # [S, KH, D]
        outs.append(dense_attention(q[starts[r] : starts[r + 1]], k, v, scale))
    return torch.cat(outs)  # [T, H, D]
