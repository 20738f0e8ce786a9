"""The five systems: the law for each, what each promises, and what sets it apart."""

import random
from dataclasses import replace

import pytest
import torch
from helpers import greedy, solo

from minivllm.baselines.fake_static_executor import FakeStaticExecutor
from minivllm.baselines.static_batching import StaticBatchingEngine
from minivllm.baselines.static_executor import StaticModelExecutor
from minivllm.baselines.systems import SYSTEMS, make_engine
from minivllm.config import SchedulerConfig
from minivllm.engine import Engine
from minivllm.executor import ModelExecutor
from minivllm.fake_executor import FakeExecutor
from minivllm.model import LlamaModel
from minivllm.sampling_params import SamplingParams
from minivllm.weights import load_weights

CONTINUOUS = [name for name in SYSTEMS if name != "static"]
NEVER_OUT_OF_MEMORY = [n for n in CONTINUOUS if n not in ("vllm", "trtllm-max-utilization")]
LIMITS = SchedulerConfig(
    num_blocks=40, block_size=4, max_num_seqs=8, max_num_batched_tokens=48, max_model_len=40
)


class Twins:
    """The torch-free twins, which notice every wrong place."""

    def paged(self, config: SchedulerConfig) -> FakeExecutor:
        return FakeExecutor(config.num_blocks, config.block_size)

    def lockstep(self, batch_size: int, max_model_len: int) -> FakeStaticExecutor:
        return FakeStaticExecutor(batch_size, max_model_len)


class Models:
    """The tiny model with random weights, in float32."""

    def __init__(self) -> None:
        config, weights = load_weights("tiny", torch.float32, "cpu")
        self.model = LlamaModel(config, weights, torch.float32, torch.device("cpu"))

    def paged(self, config: SchedulerConfig) -> ModelExecutor:
        return ModelExecutor(self.model, config.num_blocks, config.block_size)

    def lockstep(self, batch_size: int, max_model_len: int) -> StaticModelExecutor:
        return StaticModelExecutor(self.model, batch_size, max_model_len)


def engine_of(name: str, limits: SchedulerConfig = LIMITS, executors=None, **options):
    return make_engine(SYSTEMS[name], limits, executors or Twins(), **options)


def add(engine, index: int, length: int, max_tokens: int, **params) -> None:
    tokens = [(index * 31 + i) % 97 for i in range(length)]
    engine.add_request(str(index), tokens, greedy(max_tokens, ignore_eos=True, **params))


def drain(engine, check: bool = True) -> dict[str, list[int]]:
    """Step to the end; the rules of the design after each step."""
    tokens: dict[str, list[int]] = {}
    while engine.has_unfinished_requests:
        for result in engine.step():
            tokens.setdefault(result.request_id, []).extend(result.new_token_ids)
        if check and isinstance(engine, Engine):
            engine.scheduler.check_integrity()
    return tokens


# ---- the law ----


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("seed", range(8))
def test_tokens_are_those_of_each_request_alone(name: str, seed: int):
    """Random lengths and arrivals, greedy and sampled: system and schedule change no token."""
    rng = random.Random(seed)
    engine = engine_of(name)
    wanted, tokens = {}, {}
    for index in range(24):
        prompt = [rng.randrange(1000) for _ in range(rng.randint(1, 24))]
        params = SamplingParams(
            temperature=rng.choice([0, 1]), seed=index, max_tokens=rng.randint(1, 16)
        )
        engine.add_request(str(index), prompt, params)
        wanted[str(index)] = solo(prompt, params)
        for _ in range(rng.choice([0, 0, 1, 5])):
            for result in engine.step():
                tokens.setdefault(result.request_id, []).extend(result.new_token_ids)
    for request_id, more in drain(engine).items():
        tokens.setdefault(request_id, []).extend(more)
    assert tokens == wanted


@pytest.fixture(scope="module")
def models() -> Models:
    return Models()


@pytest.fixture(scope="module")
def tokens_of_vllm(models: Models) -> dict[str, list[int]]:
    return model_tokens("vllm", models)


def model_tokens(name: str, models: Models) -> dict[str, list[int]]:
    engine = engine_of(name, executors=models)
    for index, (length, max_tokens) in enumerate([(5, 9), (17, 3), (1, 12), (9, 1), (12, 7)]):
        add(engine, index, length, max_tokens)
    return drain(engine)


@pytest.mark.parametrize("name", [name for name in SYSTEMS if name != "vllm"])
def test_the_real_model_answers_the_same_under_every_system(
    name: str, models: Models, tokens_of_vllm: dict[str, list[int]]
):
    """fp32 on the CPU: paged, contiguous or padded, the tokens of the model are vLLM's."""
    assert model_tokens(name, models) == tokens_of_vllm


@pytest.mark.parametrize("name", CONTINUOUS)
def test_all_memory_comes_back(name: str):
    engine = engine_of(name)
    for index in range(12):
        add(engine, index, 1 + index, 10)
    drain(engine)
    pool = engine.scheduler.kv.pool
    assert pool.num_free_blocks == pool.num_blocks and not any(pool.ref_cnt)


# ---- promises ----


@pytest.mark.parametrize("name", NEVER_OUT_OF_MEMORY)
def test_whoever_reserves_all_is_never_preempted(name: str):
    """GUARANTEED_NO_EVICT, TGI and Orca hold what they may come to need, in a crowded pool."""
    engine = engine_of(name)
    for index in range(20):
        add(engine, index, 3, 30)
    drain(engine)
    assert engine.scheduler.stats.num_preemptions == 0


@pytest.mark.parametrize("name", ["vllm", "trtllm-max-utilization"])
def test_whoever_reserves_the_prompt_only_preempts_when_memory_runs_out(name: str):
    """The same crowd, more of it at once: the price is that somebody must leave and come again."""
    engine = engine_of(name)
    for index in range(20):
        add(engine, index, 3, 30)
    drain(engine)
    assert engine.scheduler.stats.num_preemptions > 0


def test_static_never_admits_mid_batch_and_keeps_its_rows():
    """Four rows; the batch of 2, 2, 2 and 9 tokens runs 9 steps, and only then the others enter."""
    engine = engine_of("static")
    assert isinstance(engine, StaticBatchingEngine) and engine.batch_size == 4
    for index, max_tokens in enumerate([2, 9, 2, 2, 5, 5]):
        add(engine, index, 3, max_tokens)
    batches: list[list[str]] = []
    while engine.has_unfinished_requests:
        engine.step()
        names = [request.request_id for request in engine.rows]
        if not batches or batches[-1] != names:
            assert all(request.num_output_tokens == 1 for request in engine.rows)
            batches.append(names)
    assert batches == [["0", "1", "2", "3"], ["4", "5"]]
    assert engine.num_steps == 9 + 5 and engine.num_row_steps == 4 * 9 + 2 * 5


def test_static_gets_as_many_rows_as_the_memory_pays_for():
    assert engine_of("static", replace(LIMITS, max_num_seqs=3)).batch_size == 3
    with pytest.raises(ValueError, match="row of 40 tokens does not fit into 36 slots"):
        engine_of("static", replace(LIMITS, num_blocks=9))


def test_continuous_systems_admit_mid_batch():
    """The opposite of static's promise: a seat that is free is taken in the next step."""
    for name in CONTINUOUS:
        engine = engine_of(name, replace(LIMITS, max_num_seqs=2))
        for index, max_tokens in enumerate([2, 9, 2]):
            add(engine, index, 3, max_tokens)
        for _ in range(3):
            engine.step()
        if name == "tgi":  # its gate: one waits, 1.2 for each running one would open it at once
            assert [r.request_id for r in engine.scheduler.running] == ["1"]
        else:
            assert [r.request_id for r in engine.scheduler.running] == ["1", "2"], name


@pytest.mark.parametrize(
    ("name", "num_blocks"),
    [("orca-max", 16), ("orca-pow2", 8), ("orca-oracle", 4), ("tgi", 4), ("trtllm-no-evict", 4),
     ("trtllm-max-utilization", 2), ("vllm", 2)],
)  # fmt: skip
def test_what_a_request_holds_when_it_has_entered(name: str, num_blocks: int):
    """A prompt of 5 and 9 output tokens, blocks of 4, rows of 40: out of 64 slots, pieces of the
    buddy allocator count whole. Max 40 -> 64; Pow2 5 + 16 - 1 = 20 -> 32; Oracle 13 -> 16."""
    engine = engine_of(name, replace(LIMITS, num_blocks=16))
    add(engine, 0, 5, 9)
    engine.step()
    pool = engine.scheduler.kv.pool
    assert pool.num_blocks - pool.num_free_blocks == num_blocks


@pytest.mark.parametrize("name", ["tgi", "trtllm-no-evict"])
def test_what_the_user_asks_for_is_reserved_not_what_comes(name: str):
    """max_new_tokens = 30 reserves 34 slots, 9 blocks, although 9 tokens come."""
    engine = engine_of(name, declared=lambda request: 30)
    add(engine, 0, 5, 9)
    engine.step()
    assert engine.scheduler.running[0].block_table.num_blocks == 9


@pytest.mark.parametrize("name", ["orca-max", "orca-pow2", "orca-oracle"])
def test_orca_lies_contiguous_and_shares_nothing(name: str):
    engine = engine_of(name)
    for index in range(3):
        add(engine, index, 7, 6)
    engine.step()
    for request in engine.scheduler.running:
        ids = request.block_table.block_ids
        assert ids == list(range(ids[0], ids[0] + len(ids)))
    with pytest.raises(ValueError, match="n = 2 samples share memory"):
        add(engine, 9, 7, 6, n=2)


def kinds_of_steps(engine) -> list[str]:
    """P for a step with prefills only, d for decodes only, m for both."""
    kinds = []
    while engine.has_unfinished_requests:
        output = engine.scheduler.schedule()
        prefills = [r.num_output_tokens == 0 for r in output.requests]
        kinds.append("P" if all(prefills) else "m" if any(prefills) else "d")
        answer = engine.executor.execute(output)
        engine.scheduler.update_from_output(output, answer)
        if len(kinds) == 2:
            for index in range(1, 4):
                add(engine, index, 4, 3)
    return kinds


def test_tgi_pauses_decodes_for_a_prefill_and_the_others_mix():
    """One runs, three more come after its second token: TGI gives them a step of their own."""
    engine = engine_of("tgi")
    add(engine, 0, 4, 6)
    assert "".join(kinds_of_steps(engine)) == "PdPdddd"
    engine = engine_of("trtllm-no-evict")
    add(engine, 0, 4, 6)
    assert "".join(kinds_of_steps(engine)) == "Pdmddd"


def test_tgi_keeps_newcomers_out_until_enough_wait_or_long_enough():
    """Two run and one waits: 1 < 1.2 * 2, so it enters after 20 steps of decoding."""
    engine = engine_of("tgi")
    add(engine, 0, 4, 30)
    add(engine, 1, 4, 30)
    engine.step()
    add(engine, 2, 4, 2)
    waited = 0
    while len(engine.scheduler.waiting):
        engine.step()
        waited += 1
    assert waited == 21  # 20 decodes, then the prefill


def test_vllm_cuts_a_prompt_and_trtllm_does_not():
    limits = replace(LIMITS, max_num_batched_tokens=8, num_blocks=200)
    engine = engine_of("vllm", limits)
    add(engine, 0, 20, 2)
    assert len(engine.step()) == 0  # 8 of 20 tokens so far
    engine = engine_of("trtllm-no-evict", limits)
    add(engine, 0, 20, 2)
    assert len(engine.step()) == 1


def test_vllm_keeps_one_block_in_a_hundred_free():
    assert engine_of("vllm", replace(LIMITS, num_blocks=250)).scheduler.config.watermark_blocks == 2


def test_every_system_is_described():
    for system in SYSTEMS.values():
        assert "eft out:" in system.about and len(system.about) > 150


def test_the_twin_of_static_batching_notices_a_full_row_and_a_wrong_token():
    engine = StaticBatchingEngine(FakeStaticExecutor(2, 6), 2, 7)
    add(engine, 0, 4, 3)
    engine.step()
    engine.rows[0].token_ids[-1] += 1
    engine.step()  # that is the token of the new column: nothing is wrong yet
    engine.rows[0].token_ids.append(5)
    with pytest.raises(RuntimeError, match="6 columns already|read Slot"):
        engine.step()
