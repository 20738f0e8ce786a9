"""Stateful tests: hypothesis looks for a sequence of calls that breaks a rule, and shortens it.

Two machines: the blocks (BlockPool, PrefixCache and BlockTable under KVCacheManager) against a
model that knows each block's tokens, and the whole engine against solo runs. The runs are the same
each time (derandomize), so that what is green here is green everywhere.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from law import Ask, Case, Game

from minivllm.config import SchedulerConfig
from minivllm.kv_cache_manager import KVCacheManager
from minivllm.page_table import num_blocks_for
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams

BOUNDED = settings(
    max_examples=50, stateful_step_count=30, deadline=None, derandomize=True, database=None
)
BLOCK_SIZE, NUM_BLOCKS, NUM_HOST_BLOCKS = 2, 8, 4
tokens = st.lists(st.integers(0, 1), min_size=1, max_size=9)


class Blocks(RuleBasedStateMachine):
    """Every block is said to hold the prefix that was computed into it last; see `written`."""

    def __init__(self) -> None:
        super().__init__()
        config = SchedulerConfig(
            NUM_BLOCKS,
            BLOCK_SIZE,
            enable_prefix_caching=True,
            preemption_mode="swap",
            num_host_blocks=NUM_HOST_BLOCKS,
        )
        self.kv = KVCacheManager(config)
        self.running: list[Request] = []
        self.swapped: list[Request] = []
        self.written: dict[tuple[str, int], tuple[int, ...]] = {}  # (pool, block) -> its prefix

    def _carry_out(self) -> None:
        """Do what the block operations say, as an executor would."""
        for op in self.kv.take_block_ops():
            source = "host" if op.kind == "swap_in" else "device"
            target = "host" if op.kind == "swap_out" else "device"
            self.written[target, op.dst] = self.written[source, op.src]

    def _compute(self, request: Request, num_new: int) -> None:
        """Write the next tokens into their blocks; nobody else may hold a block written to."""
        self._carry_out()
        for position in request.next_positions(num_new):
            block_id = request.block_table.slot(position) // BLOCK_SIZE
            assert self.kv.pool.ref_cnt[block_id] == 1, "written while shared"
            self.written["device", block_id] = tuple(request.token_ids[: position + 1])
        request.num_computed_tokens += num_new
        self.kv.publish_full_blocks(request)

    def _enter(self, request: Request) -> bool:
        need = self.kv.initial_need(request, request.num_tokens)
        before = self.kv.pool.free_block_ids
        if need.num_blocks > len(before):
            assert self.kv.pool.free_block_ids == before and not request.block_table.block_ids
            return False
        self.kv.allocate_initial(request, request.num_tokens, need)
        assert len(before) - self.kv.pool.num_free_blocks == need.num_blocks
        assert request.num_computed_tokens < request.num_tokens
        self._carry_out()
        return True

    @rule(prompt=tokens, salt=st.sampled_from([None, "a"]))
    def enter(self, prompt: list[int], salt: str | None) -> None:
        params = SamplingParams(max_tokens=50)
        request = Request("r", prompt, params, BLOCK_SIZE, cache_salt=salt)
        if self._enter(request):
            self.running.append(request)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), token=st.integers(0, 1))
    def run(self, data: st.DataObject, token: int) -> None:
        """Some of the tokens that a request lacks; one more appended when it lacks none."""
        request = data.draw(st.sampled_from(self.running))
        if request.num_computed_tokens == request.num_tokens:
            request.append_token(token)
        num_new = data.draw(st.integers(1, request.num_tokens - request.num_computed_tokens))
        before = list(request.block_table.block_ids), self.kv.pool.free_block_ids
        if self.kv.allocate_slots(request, num_new) is None:
            assert (request.block_table.block_ids, self.kv.pool.free_block_ids) == before
        else:
            self._compute(request, num_new)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(self.running))
        child = parent.fork(parent.sample_index + 1)
        self.kv.fork(parent, child)
        self.running.append(child)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.running))
        self.running.remove(request)
        self.kv.free(request)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.running))
        self.running.remove(request)
        if self.kv.preempt(request):
            self.swapped.append(request)
        self._carry_out()

    @precondition(lambda self: self.swapped)
    @rule(data=st.data(), token=st.integers(0, 1))
    def resume(self, data: st.DataObject, token: int) -> None:
        request = data.draw(st.sampled_from(self.swapped))
        if request.num_computed_tokens == request.num_tokens:
            request.append_token(token)
        if self._enter(request):
            self.swapped.remove(request)
            self.running.append(request)

    @precondition(lambda self: self.swapped)
    @rule(data=st.data())
    def abort_swapped(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.swapped))
        self.swapped.remove(request)
        self.kv.free(request)

    @invariant()
    def counts_agree(self) -> None:
        self.kv.check_integrity(self.running + self.swapped)
        assert len(self.kv.prefix_cache) <= NUM_BLOCKS

    @invariant()
    def every_block_holds_what_its_holders_think(self) -> None:
        for request in self.running:
            for index in range(num_blocks_for(request.num_computed_tokens, BLOCK_SIZE)):
                end = min((index + 1) * BLOCK_SIZE, request.num_computed_tokens)
                held = self.written["device", request.block_table.block_ids[index]]
                assert held[:end] == tuple(request.token_ids[:end])

    @invariant()
    def what_is_published_is_there(self) -> None:
        for block_id, key in self.kv.prefix_cache._key_of.items():
            entry = self.kv.prefix_cache._blocks[key]
            assert self.written["device", block_id][-BLOCK_SIZE:] == entry.token_ids
            assert len(self.written["device", block_id]) % BLOCK_SIZE == 0


asks = st.builds(
    Ask,
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=10).map(tuple),
    n=st.sampled_from([1, 1, 2]),
    max_tokens=st.integers(1, 8),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 2),
    priority=st.integers(0, 2),
    salt=st.sampled_from([None, "a"]),
)
configs = st.builds(
    SchedulerConfig,
    num_blocks=st.integers(3, 9),
    block_size=st.integers(1, 4),
    max_num_seqs=st.integers(2, 4),
    max_num_batched_tokens=st.integers(2, 16),
    long_prefill_token_threshold=st.integers(0, 2),
    watermark_blocks=st.integers(0, 1),
    enable_prefix_caching=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority", "sjf"]),
    preemption_mode=st.sampled_from(["recompute", "swap"]),
    num_host_blocks=st.integers(0, 4),
)


class EngineGame(RuleBasedStateMachine):
    """The game of law.py, its actions chosen by hypothesis; it checks its rules itself."""

    def __init__(self) -> None:
        super().__init__()
        self.game: Game | None = None

    @precondition(lambda self: self.game is None)
    @rule(config=configs)
    def start(self, config: SchedulerConfig) -> None:
        self.game = Game(Case(config, 2, (), False, (), ()))

    @precondition(lambda self: self.game)
    @rule(ask=asks)
    def add(self, ask: Ask) -> None:
        asks = self.game.case.asks
        self.game.case = replace(self.game.case, asks=(*asks, ask))
        self.game._add(len(asks))

    @precondition(lambda self: self.game and self.game.accepted)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.game._abort(data.draw(st.sampled_from(sorted(self.game.accepted))))

    @precondition(lambda self: self.game and self.game.scheduler.running)
    @rule(index=st.integers(0, 3))
    def preempt(self, index: int) -> None:
        self.game._preempt(index)

    @precondition(lambda self: self.game)
    @rule(phases=st.integers(1, 6))
    def go(self, phases: int) -> None:
        for _ in range(phases):
            self.game._go()

    def teardown(self) -> None:
        if self.game is not None:
            self.game.play()  # it has no actions of its own: it is drained and judged


Blocks.TestCase.settings = BOUNDED
EngineGame.TestCase.settings = BOUNDED
TestBlocks = Blocks.TestCase
TestEngineGame = EngineGame.TestCase
