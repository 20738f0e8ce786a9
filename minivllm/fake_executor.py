"""The twin of the model without torch: it cannot answer right from a wrong block.

A KV slot stores (token, position, digest of the whole prefix). To produce a token the twin gathers
the request's slots through its block table, checks every one, and derives the next token from what
it read. A block that is stale, shared by mistake, freed too early or off by one shows at once: as a
RuntimeError where the entry is wrong, or as a token that differs from those of the request alone.
"""

from __future__ import annotations

from typing import NamedTuple

from minivllm.request import Request
from minivllm.step_records import BlockOp, ModelOutput, SchedulerOutput

MASK = (1 << 61) - 1


class Slot(NamedTuple):
    """What one slot of the twin's KV cache holds."""

    token_id: int
    position: int
    digest: int  # of all tokens up to this one


def extend_digest(digest: int, token_id: int) -> int:
    """The digest of a prefix with one more token: a chain, so each depends on all tokens before."""
    return (digest * 1_000_003 + token_id * 2_654_435_761 + 97) & MASK


def choose_token(
    request: Request, digest: int, vocab_size: int, sample_index: int | None = None
) -> int:
    """The twin's next token: a function of the prefix's digest and of the request's own draw."""
    draw = request.next_draw(sample_index)
    mixed = extend_digest(digest, 0 if draw is None else int(draw * MASK))
    token_id = (mixed >> 20) % vocab_size
    while token_id in request.suppressed_token_ids:
        token_id = (token_id + 1) % vocab_size
    return token_id


class FakeExecutor:
    """Runs steps without a model, over `num_blocks` blocks of `block_size` slots.

    vocab_size: tokens are 0 .. vocab_size - 1. check_all: verify every slot of a request in each
    step, O(context); else only the newest, O(1), whose digest still vouches for the whole prefix.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        vocab_size: int = 1000,
        num_host_blocks: int = 0,
        check_all: bool = True,
    ) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.check_all = check_all
        self.slots: list[Slot | None] = [None] * (num_blocks * block_size)
        self.host_slots: list[Slot | None] = [None] * (num_host_blocks * block_size)

    def execute(self, output: SchedulerOutput) -> ModelOutput:
        """Run one step; the answer is aligned with `output.requests`."""
        for op in output.block_ops:
            self._move(op)
        chunks = output.live_chunks()
        self._check_slots_distinct(chunks)
        digests = [self._write(request, num_new) for _, request, num_new in chunks]
        answer = ModelOutput([[] for _ in output.requests])
        for (index, request, num_new), digest in zip(chunks, digests, strict=True):
            end = request.num_computed_tokens + num_new
            if self.check_all:
                self._check_context(request, end)
            if end == request.num_tokens and request.is_beam:
                answer.logprobs[index] = [self._offer(request, digest)]
            elif end == request.num_tokens:
                answer.sampled_token_ids[index] = self._sample(request, digest)
        return answer

    def _move(self, op: BlockOp) -> None:
        source = self.host_slots if op.kind == "swap_in" else self.slots
        target = self.host_slots if op.kind == "swap_out" else self.slots
        for offset in range(self.block_size):
            target[op.dst * self.block_size + offset] = source[op.src * self.block_size + offset]

    def _write(self, request: Request, num_new: int) -> int:
        """Store the chunk's tokens; returns the digest of the prefix that ends with it."""
        start = request.num_computed_tokens
        digest = self._read(request, start - 1).digest if start else 0
        for position in request.next_positions(num_new):
            token_id = request.token_ids[position]
            digest = extend_digest(digest, token_id)
            self.slots[request.block_table.slot(position)] = Slot(token_id, position, digest)
        return digest

    def _read(self, request: Request, position: int) -> Slot:
        slot = self.slots[request.block_table.slot(position)]
        if slot is None or slot[:2] != (request.token_ids[position], position):
            raise RuntimeError(f"{request.name} position {position}: read {slot}")
        return slot

    def _check_context(self, request: Request, end: int) -> None:
        digest = 0
        for position in range(end):
            digest = extend_digest(digest, request.token_ids[position])
            if self._read(request, position).digest != digest:
                raise RuntimeError(f"{request.name} position {position}: another prefix's KV")

    def _check_slots_distinct(self, chunks: list[tuple[int, Request, int]]) -> None:
        if not self.check_all:
            return
        written = [
            request.block_table.slot(position)
            for _, request, num_new in chunks
            for position in request.next_positions(num_new)
        ]
        if len(set(written)) != len(written):
            raise RuntimeError("two tokens of one step are written into the same slot")

    def _sample(self, request: Request, digest: int) -> list[int]:
        """One token for the request, and one for each sample that will be forked from it."""
        first = request.sample_index
        return [
            choose_token(request, digest, self.vocab_size, sample_index)
            for sample_index in range(first, first + request.num_seats)
        ]

    def _offer(self, request: Request, digest: int) -> dict[int, float]:
        """Made-up log probabilities of a beam's likeliest tokens, as many as it asks for."""
        scores = {token: -(extend_digest(digest, token) >> 20) % 997 / 100
                  for token in range(self.vocab_size)}  # fmt: skip
        likeliest = sorted(scores, key=lambda token: (scores[token], token))
        return {token: -scores[token] for token in likeliest[: request.params.logprobs]}
