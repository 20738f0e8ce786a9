"""The law of the project as a game: a case is made from a seed, played, and shrunk when it fails.

The tokens of a request do not depend on the schedule. A case holds the limits of an engine, some
requests, and a flat list of actions; any part of that list is a valid game too, so a failing one
can be shortened by leaving actions out until nothing more can go.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from minivllm.beam_search import BeamSearch, BeamSearchParams
from minivllm.config import SchedulerConfig
from minivllm.engine import Engine
from minivllm.fake_executor import FakeExecutor, extend_digest
from minivllm.page_table import num_blocks_for
from minivllm.request import Request, RequestStatus
from minivllm.sampling_params import SamplingParams
from minivllm.scheduler import Scheduler
from minivllm.step_records import EngineOutput, SchedulerOutput

MAX_STEPS = 500
# ("add", i) ("abort", i) ("preempt", k) ("crash", 0): the executor breaks off, if it is its turn;
# ("go",): to the next phase of a step.
Action = tuple


def num_seeds(default: int) -> int:
    """How many seeds to try: LAW_SEEDS in the environment, or `default`."""
    return int(os.environ.get("LAW_SEEDS", default))


@dataclass(frozen=True)
class Ask:
    """What a user sends: hashable, so that its solo run is computed once."""

    prompt: tuple[int, ...]
    n: int = 1
    max_tokens: int = 4
    min_tokens: int = 0
    temperature: float = 0.0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    priority: int = 0
    salt: str | None = None
    beam_width: int = 0  # a beam search where it is not 0

    @property
    def num_seats(self) -> int:
        return self.beam_width or self.n

    def params(self) -> SamplingParams:
        return SamplingParams(
            n=self.n,
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            seed=self.seed,
            stop_token_ids=list(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
        )


@dataclass(frozen=True)
class Case:
    """One game: the engine's limits, the requests, and what happens when."""

    config: SchedulerConfig
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    reserve_all: bool
    asks: tuple[Ask, ...]
    actions: tuple[Action, ...]


def reserve_all_tokens(request: Request) -> int:
    return request.max_kv_tokens


def make_engine(
    config: SchedulerConfig,
    vocab_size: int = 1000,
    eos_token_ids: tuple[int, ...] = (),
    **options: Callable[[Request], int],
) -> Engine:
    """An engine whose executor notices each wrong block."""
    executor = FakeExecutor(
        config.num_blocks, config.block_size, vocab_size, num_host_blocks=config.num_host_blocks
    )
    return Engine(Scheduler(config, **options), executor, eos_token_ids)


def start_search(engine: Engine, name: str, ask: Ask) -> BeamSearch:
    return BeamSearch(
        engine, name, ask.prompt, BeamSearchParams(ask.beam_width, ask.max_tokens), ask.salt
    )


@lru_cache(maxsize=4096)
def solo_run(ask: Ask, vocab_size: int, eos_token_ids: tuple[int, ...]) -> dict[int, list[int]]:
    """The tokens of each sample (or kept beam) of a request that has a roomy engine to itself."""
    num_blocks = num_blocks_for(len(ask.prompt) + ask.max_tokens, 16) * ask.num_seats
    config = SchedulerConfig(num_blocks=num_blocks, max_num_seqs=ask.num_seats, watermark_blocks=0)
    engine = make_engine(config, vocab_size, eos_token_ids)
    tokens: dict[int, list[int]] = {}
    if ask.beam_width:
        search = start_search(engine, "solo", ask)
        while search.is_running:
            for result in engine.step():
                search.take(result)
        return kept_tokens(search)
    engine.add_request("solo", ask.prompt, ask.params(), ask.priority, ask.salt)
    while engine.has_unfinished_requests:
        for result in engine.step():
            tokens.setdefault(result.sample_index, []).extend(result.new_token_ids)
    return tokens


def kept_tokens(search: BeamSearch) -> dict[int, list[int]]:
    return {rank: sequence.tokens for rank, sequence in enumerate(search.kept)}


def make_case(seed: int) -> Case:
    """The case of a seed: small pools and alphabets, so that everything meets everything."""
    rng = random.Random(seed)
    vocab_size = rng.choice([2, 3])
    config = make_config(rng)
    asks = tuple(make_ask(rng, config, vocab_size) for _ in range(rng.randint(1, 8)))
    eos_token_ids = rng.choice([(), (), (0,)])
    return Case(
        config, vocab_size, eos_token_ids, rng.random() < 0.15, asks, make_actions(rng, len(asks))
    )


def make_config(rng: random.Random) -> SchedulerConfig:
    block_size, num_blocks = rng.randint(1, 5), rng.randint(3, 12)
    budget = rng.choice([rng.randint(1, 12), rng.randint(1, 12), 200])
    max_model_len = num_blocks * block_size + 5
    chunked = budget < max_model_len or rng.random() < 0.7
    return SchedulerConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=rng.randint(1, 6),
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        long_prefill_token_threshold=rng.choice([0, rng.randint(1, budget)]) if chunked else 0,
        enable_chunked_prefill=chunked,
        watermark_blocks=rng.randint(0, 2),
        enable_prefix_caching=rng.random() < 0.7,
        policy=rng.choice(["fcfs", "priority", "sjf"]),
        preemption_mode=rng.choice(["swap", "recompute"]),
        num_host_blocks=rng.randint(0, 6),
    )


def make_ask(rng: random.Random, config: SchedulerConfig, vocab_size: int) -> Ask:
    room = config.block_size * config.num_blocks + 1
    num_prompt = rng.randint(1, max(room // rng.choice([1, 2, 3]), 1))
    max_tokens = rng.randint(1, max(min(room - num_prompt + 1, 16), 1))
    prompt = [rng.randrange(vocab_size) for _ in range(num_prompt)]
    prompt[: num_prompt * 3 // 4] = [0] * (num_prompt * 3 // 4)  # so that prefixes are shared
    stops = (rng.randrange(1, vocab_size),) if vocab_size > 2 and rng.random() < 0.2 else ()
    return Ask(
        prompt=tuple(prompt),
        n=rng.choice([1, 1, 1, 2, 3]),
        max_tokens=max_tokens,
        min_tokens=rng.choice([0, 0, rng.randint(0, max_tokens)]),
        temperature=rng.choice([0.0, 1.0]),
        seed=rng.randint(0, 3),
        stop_token_ids=stops,
        ignore_eos=rng.random() < 0.3,
        priority=rng.randint(0, 3),
        salt=rng.choice([None, None, None, "a", "b"]),
        beam_width=rng.choice([0] * 9 + [min(vocab_size, config.max_num_seqs)]),
    )


def make_actions(rng: random.Random, num_asks: int) -> tuple[Action, ...]:
    """Each request comes at some time; aborts and preemptions fall into any phase of a step."""
    actions: list[Action] = []
    aborts, preempts = rng.choice([0, 0.04]), rng.choice([0, 0.03, 0.1])
    hurry, crashes = rng.choice([0.1, 0.3, 0.6]), rng.choice([0, 0, 0.03])
    added = 0
    while added < num_asks or rng.random() < 0.97:
        dice = rng.random()
        if dice < aborts:
            actions.append(("abort", rng.randrange(num_asks)))
        elif dice < aborts + preempts:
            actions.append(("preempt", rng.randrange(6)))
        elif dice < aborts + preempts + hurry and added < num_asks:
            actions.append(("add", added))
            added += 1
        elif rng.random() < crashes:
            actions.append(("crash", 0))
        else:
            actions.append(("go",))
    return tuple(actions)


class Game:
    """Plays one case and checks the law on the way. Raises AssertionError or RuntimeError."""

    def __init__(self, case: Case, trace: list[str] | None = None) -> None:
        self.case = case
        self.trace = trace
        options = {"reserve": reserve_all_tokens} if case.reserve_all else {}
        self.engine = make_engine(case.config, case.vocab_size, case.eos_token_ids, **options)
        self.scheduler = self.engine.scheduler
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.ended: dict[tuple[int, int], str] = {}
        self.searches: dict[int, BeamSearch] = {}
        self.accepted: set[int] = set()
        self.aborted: set[int] = set()
        self.reached: dict[Request, int] = {}  # tokens whose KV a request has ever had
        self.num_recomputed = 0
        self.phases = self._phases()
        self.phase = "update"  # the last one that is done

    def play(self) -> None:
        for kind, *arguments in self.case.actions:
            if kind != "go":
                self._say(f"after {self.phase}: {kind} {arguments[0]}")
            getattr(self, f"_{kind}")(*arguments)
        while self.engine.has_unfinished_requests or self.phase != "update":
            self._go()
        self._check_drained()
        self._check_tokens()

    def _say(self, words: str) -> None:
        if self.trace is not None:
            self.trace.append(words)

    # --- the actions ----------------------------------------------------------------------------

    def _add(self, index: int) -> None:
        if index in self.accepted:
            return
        ask, config = self.case.asks[index], self.case.config
        need = num_blocks_for(len(ask.prompt) + ask.max_tokens - 1, config.block_size)
        if ask.beam_width:
            need = need * ask.beam_width + config.watermark_blocks
        fits = need <= config.num_blocks and ask.num_seats <= config.max_num_seqs
        fits_length = len(ask.prompt) < config.max_model_len
        try:
            if ask.beam_width:
                self.searches[index] = start_search(self.engine, str(index), ask)
            else:
                name, params = str(index), ask.params()
                self.engine.add_request(name, ask.prompt, params, ask.priority, ask.salt)
        except ValueError:
            assert not (fits and fits_length), f"request {index} fits, but is refused"
        else:
            assert fits and fits_length, f"request {index} can never fit, but is accepted"
            self.accepted.add(index)

    def _abort(self, index: int) -> None:
        results = self.engine.abort(str(index))
        assert all(result.finish_reason == "abort" for result in results)
        if results:
            self.aborted.add(index)
        self._take(results)

    def _preempt(self, index: int) -> None:
        if running := self.scheduler.running:
            self.scheduler._preempt_request(running[index % len(running)])

    def _crash(self, _: int) -> None:
        """The executor breaks off: whatever this step was to write or move may hold anything."""
        if self.phase != "schedule":
            return
        executor, config = self.engine.executor, self.case.config
        for op in self.output.block_ops:
            pool = executor.host_slots if op.kind == "swap_out" else executor.slots
            first = op.dst * config.block_size
            pool[first : first + config.block_size] = [None] * config.block_size
        for _, request, num_new in self.output.live_chunks():
            for position in request.next_positions(num_new):
                executor.slots[request.block_table.slot(position)] = None
        self.scheduler.lose_all()
        self.scheduler.check_integrity()
        self.phases, self.phase = self._phases(), "update"

    def _go(self) -> None:
        self.phase = next(self.phases)

    def _phases(self) -> Iterator[str]:
        """schedule, execute and update in turn, for ever; other actions fall in between."""
        while (step := self.scheduler.step + 1) < MAX_STEPS:
            self.output = output = self.scheduler.schedule()
            self._check_schedule(output)
            yield "schedule"
            model_output = self.engine.executor.execute(output)
            yield "execute"
            self._count_recomputed(output)
            self._take(self.scheduler.update_from_output(output, model_output))
            for event in output.events:
                self._say(f"  step {step}: {event}")
            self._note_reached()
            self.scheduler.check_integrity()
            self._check_cache()
            yield "update"
        raise AssertionError(f"not drained after {MAX_STEPS} steps")

    # --- the rules ------------------------------------------------------------------------------

    def _take(self, results: list[EngineOutput]) -> None:
        for result in results:
            if int(result.request_id) in self.searches:
                self.searches[int(result.request_id)].take(result)
                continue
            key = (int(result.request_id), result.sample_index)
            assert key not in self.ended, f"{key} has ended already: {result}"
            self.tokens.setdefault(key, []).extend(result.new_token_ids)
            if result.finish_reason:
                self.ended[key] = result.finish_reason

    def _check_schedule(self, output: SchedulerOutput) -> None:
        scheduler, config = self.scheduler, self.case.config
        self._note_reached()
        counts = output.num_scheduled_tokens
        assert sum(counts) <= config.max_num_batched_tokens, "more tokens than the budget"
        assert all(1 <= count <= config.max_chunk for count in counts), f"chunks of {counts} tokens"
        assert len(set(output.requests)) == len(output.requests), "a request is scheduled twice"
        assert all(request in scheduler.running for request in output.requests)
        kinds = [event.kind for event in output.events if event.step == output.step]
        preempted = [r for r in scheduler.waiting if r.status is RequestStatus.PREEMPTED]
        if preempted:
            assert "admit" not in kinds, "a new request has overtaken a preempted one"
        gone = {event.name for event in output.events if " a block:" in event.reason}
        for request in preempted:
            if request.name in gone and scheduler.running:
                last = scheduler.running[-1]
                order = scheduler.waiting.order
                assert order(last) < order(request), "not the youngest left"
        forced = case_has(self.case, "preempt") or case_has(self.case, "crash")
        if self.case.reserve_all and not forced and not self._forks():
            assert scheduler.stats.num_preemptions == 0, "preempted, though all was reserved"

    def _forks(self) -> bool:
        return any(ask.num_seats > 1 for ask in self.case.asks)

    def _note_reached(self) -> None:
        for request in self.scheduler.running:
            reached = self.reached.get(request, 0)
            self.reached[request] = max(reached, request.num_computed_tokens)

    def _count_recomputed(self, output: SchedulerOutput) -> None:
        for _, request, num_new in output.live_chunks():
            reached = self.reached.get(request, 0)
            end = request.num_computed_tokens + num_new
            self.num_recomputed += max(min(reached, end) - request.num_computed_tokens, 0)

    def _check_cache(self) -> None:
        """What the prefix cache promises is what the slots hold."""
        cache, slots = self.scheduler.kv.prefix_cache, self.engine.executor.slots
        if cache is None:
            return
        block_size = self.case.config.block_size
        for entry in cache._blocks.values():
            held = slots[entry.block_id * block_size :][:block_size]
            assert tuple(slot and slot.token_id for slot in held) == entry.token_ids, entry
            for before, after in zip(held, held[1:], strict=False):
                assert after.digest == extend_digest(before.digest, after.token_id), entry
            if entry.parent in cache._blocks:
                above = cache._blocks[entry.parent].block_id
                parent = slots[(above + 1) * block_size - 1]
                assert held[0].digest == extend_digest(parent.digest, held[0].token_id), entry

    def _check_drained(self) -> None:
        scheduler, kv = self.scheduler, self.scheduler.kv
        assert kv.pool.num_free_blocks == self.case.config.num_blocks, "blocks are still held"
        assert not any(kv.pool.ref_cnt) and kv.pool.num_shared_blocks == 0
        if kv.host_pool is not None:
            assert not any(kv.host_pool.ref_cnt), "host blocks are still held"
        assert not scheduler.running and not scheduler.requests and not len(scheduler.waiting)
        assert not scheduler.waiting._heap and not scheduler.waiting._entry_of
        plain = self.accepted - set(self.searches)
        wanted = {(i, s) for i in plain - self.aborted for s in range(self.case.asks[i].n)}
        assert wanted <= set(self.ended), f"never ended: {sorted(wanted - set(self.ended))}"
        assert {index for index, _ in self.ended} == plain
        assert set(self.tokens) == set(self.ended), "tokens without an end"
        assert not any(search.is_running for search in self.searches.values())
        counted = scheduler.stats.num_recomputed_tokens
        if not self.searches:  # a beam forked from a preempted one computes what that one has lost
            assert counted == self.num_recomputed, f"{counted}, not {self.num_recomputed} again"

    def _check_tokens(self) -> None:
        for (index, sample), tokens in self.tokens.items():
            solo = solo_run(self.case.asks[index], self.case.vocab_size, self.case.eos_token_ids)
            wanted = solo[sample]
            if self.ended[index, sample] == "abort":
                wanted = wanted[: len(tokens)]
            assert tokens == wanted, f"request {index}.{sample}: {tokens}, alone {wanted}"
        for index, search in self.searches.items():
            solo = solo_run(self.case.asks[index], self.case.vocab_size, self.case.eos_token_ids)
            if index not in self.aborted:
                assert search.error is None
                assert kept_tokens(search) == solo, f"beams {index}: {search.kept}, alone {solo}"


def case_has(case: Case, kind: str) -> bool:
    return any(action[0] == kind for action in case.actions)


def failure(case: Case, trace: list[str] | None = None) -> Exception | None:
    """What goes wrong in a case, or None."""
    game = Game(case, trace)
    try:
        game.play()
    except Exception as error:  # whatever an engine under attack may raise
        for event in game.scheduler.events:
            game._say(f"  step {event.step}: {event}")
        return error
    return None


def shrink(case: Case, most: int = 600) -> Case:
    """Leave out actions, longest runs first, as long as the case still fails; at most `most` tries.

    A request goes with its "add"; what is left of a case is played to the end in any case.
    """
    length = max(len(case.actions) // 2, 1)
    while length:
        start = 0
        while start < len(case.actions) and most:
            fewer = case.actions[:start] + case.actions[start + length :]
            most -= 1
            if failure(replace(case, actions=fewer)):
                case = replace(case, actions=fewer)
            else:
                start += length
        length //= 2
    return case


def check_seed(seed: int) -> None:
    """Play the case of a seed; when it fails, tell its shortest story."""
    case = make_case(seed)
    if failure(case) is None:
        return
    case = shrink(case)
    trace: list[str] = []
    error = failure(case, trace)
    asks = {action[1]: case.asks[action[1]] for action in case.actions if action[0] == "add"}
    story = [
        f"seed {seed} breaks the law: {type(error).__name__}: {error}",
        f"{case.config}, vocabulary {case.vocab_size}, eos {case.eos_token_ids}, "
        f"reserve_all {case.reserve_all}",
        *(f"request {index}: {ask}" for index, ask in asks.items()),
        *trace,
    ]
    raise AssertionError("\n".join(story)) from error
