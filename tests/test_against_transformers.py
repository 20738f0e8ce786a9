"""SmolLM2 in float32, greedy: token for token what Hugging Face transformers gives.

The reference is one left-padded `generate` of all prompts; ours runs them one by one, and all
together under every kind of pressure.
"""

from types import ModuleType

import pytest
import torch
from helpers import is_empty

from minivllm.beam_search import BeamSearchParams
from minivllm.config import SchedulerConfig
from minivllm.engine import Engine
from minivllm.executor import ModelExecutor
from minivllm.lab.demo_prompts import LONG, SHORT
from minivllm.lab.hf_generate import HuggingFace
from minivllm.llm import LLM
from minivllm.sampling_params import SamplingParams
from minivllm.scheduler import Scheduler
from minivllm.tokenizer import Tokenizer

pytestmark = [pytest.mark.model, pytest.mark.hf]

NUM_NEW = 64
PADDING = 5  # <file_sep>: stands behind a text's end, and in no answer here


@pytest.fixture(scope="module")
def llm(smollm2: str) -> LLM:
    return LLM(smollm2, num_blocks=400, enable_prefix_caching=False)


@pytest.fixture(scope="module")
def hf(smollm2: str, transformers: ModuleType) -> torch.nn.Module:
    """transformers' own Llama with our weights (that they are SmolLM2's is another test)."""
    return HuggingFace(smollm2, torch.float32, torch.device("cpu")).model


@pytest.fixture(scope="module")
def prompts(smollm2_tokenizer: Tokenizer) -> list[list[int]]:
    """16 prompts of 5 to about 300 tokens, most of them chats."""

    def chat(text: str) -> list[int]:
        text = smollm2_tokenizer.apply_chat_template([{"role": "user", "content": text}])
        return smollm2_tokenizer.encode(text, add_special_tokens=False)

    short = [smollm2_tokenizer.encode("The capital of France is"), chat("Hi")]
    middle = [chat(text) for text in (SHORT[:5] + LONG[:5])]
    long = [chat(" ".join(SHORT[first : first + n])) for first, n in ((0, 8), (5, 13), (0, 18))]
    longest = chat(" ".join(SHORT + LONG[:2]))[:300]
    return [*short, *middle, *long, longest]


def left_padded(prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask of a batch, [B, C] each."""
    longest = max(map(len, prompts))
    ids = [[0] * (longest - len(p)) + p for p in prompts]
    mask = [[0] * (longest - len(p)) + [1] * len(p) for p in prompts]
    return torch.tensor(ids), torch.tensor(mask)  # [B, C], [B, C]


@pytest.fixture(scope="module")
def reference(hf: torch.nn.Module, prompts: list[list[int]]) -> list[list[int]]:
    """64 greedy tokens for each prompt, by transformers."""
    ids, mask = left_padded(prompts)
    limits = dict(max_new_tokens=NUM_NEW, min_new_tokens=NUM_NEW)
    with torch.inference_mode():
        out = hf.generate(ids, attention_mask=mask, do_sample=False, pad_token_id=0, **limits)
    return out[:, ids.shape[1] :].tolist()


def engine_of(llm: LLM, num_blocks: int, **limits: object) -> Engine:
    """Another engine over the same weights."""
    config = SchedulerConfig(num_blocks=num_blocks, max_model_len=512, **limits)
    executor = ModelExecutor(llm.model, num_blocks, config.block_size, config.num_host_blocks)
    return Engine(Scheduler(config), executor)


def run(engine: Engine, asks: list[tuple[list[int], SamplingParams]]) -> list[list[list[int]]]:
    """All asks at once; of each, the tokens of its samples."""
    for index, (prompt, params) in enumerate(asks):
        engine.add_request(str(index), prompt, params)
    tokens: list[list[list[int]]] = [[[] for _ in range(params.n)] for _, params in asks]
    while engine.has_unfinished_requests:
        for result in engine.step():
            tokens[int(result.request_id)][result.sample_index] += result.new_token_ids
    engine.scheduler.check_integrity()
    assert is_empty(engine)
    return tokens


def run_greedy(engine: Engine, prompts: list[list[int]], num_new: int = NUM_NEW) -> list[list[int]]:
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=num_new)
    return [samples[0] for samples in run(engine, [(prompt, params) for prompt in prompts])]


def test_the_prompts_are_what_the_issue_asks_for(prompts: list[list[int]]):
    lengths = sorted(map(len, prompts))
    assert len(prompts) == 16 and lengths[0] == 5 and lengths[-1] == 300


def test_logits_of_a_prefill(llm: LLM, hf: torch.nn.Module, prompts: list[list[int]]):
    """In one piece, and in chunks of 7 beside another request: within 1e-3 of transformers'."""
    with torch.inference_mode():
        for prompt in (prompts[0], prompts[2], prompts[12]):
            expected = hf(torch.tensor([prompt])).logits[0, -1]  # [V]
            for limits in ({}, dict(long_prefill_token_threshold=7, block_size=5)):
                engine = engine_of(llm, 100, **limits)
                seen = {}
                inner = engine.executor._sample

                def spy(logits, complete, answer, seen=seen, inner=inner):
                    seen.update((r.name, logits[i]) for i, (_, r) in enumerate(complete))
                    inner(logits, complete, answer)

                engine.executor._sample = spy
                one = SamplingParams(temperature=0, max_tokens=1)
                run(engine, [(prompt, one), (prompts[1], one)])
                assert (seen["0"] - expected).abs().max() < 1e-3


@pytest.mark.slow
def test_alone(llm: LLM, prompts: list[list[int]], reference: list[list[int]]):
    """One after another, each with the engine to itself."""
    for index, prompt in enumerate(prompts):
        assert run_greedy(llm.engine, [prompt]) == [reference[index]], f"prompt {index}"


@pytest.mark.parametrize(("mode", "num_new"), [("recompute", NUM_NEW), ("swap", 32)])
def test_all_together_in_a_pool_too_small(
    llm: LLM, prompts: list[list[int]], reference: list[list[int]], mode: str, num_new: int
):
    """44 blocks for requests that want about 140 when they end: many are preempted on the way."""
    limits = dict(max_num_batched_tokens=128, preemption_mode=mode, num_host_blocks=100)
    engine = engine_of(llm, 44, **limits)
    assert run_greedy(engine, prompts, num_new) == [tokens[:num_new] for tokens in reference]
    stats = engine.scheduler.stats
    assert stats.num_preemptions >= 4
    assert (stats.num_swapped_blocks > 0) == (mode == "swap")
    assert (stats.num_recomputed_tokens > 0) == (mode == "recompute")


def test_with_prefix_caching(llm: LLM, prompts: list[list[int]], reference: list[list[int]]):
    """The same prompts in two waves: the second finds every whole block of the first's prompts but
    the one that holds the last token, and gives the same tokens."""
    engine = engine_of(llm, 200, enable_prefix_caching=True)
    chosen = [2, 7, 12, 13]
    found = [0]
    for _ in range(2):
        tokens = run_greedy(engine, [prompts[i] for i in chosen], 24)
        assert tokens == [reference[i][:24] for i in chosen]
        found.append(engine.scheduler.stats.num_cached_tokens)
    assert found[2] - found[1] == sum((len(prompts[i]) - 1) // 16 * 16 for i in chosen)


def test_four_samples_each_equal_the_run_alone(llm: LLM, prompts: list[list[int]]):
    """n = 4: a sample's stream is a function of the seed and its index. Sample i of a request alone
    in a roomy engine; then three requests of four together, out of blocks, over cached prefixes."""

    def params(seed: int) -> SamplingParams:
        return SamplingParams(n=4, top_k=5, seed=seed, max_tokens=16, ignore_eos=True)

    asks = [(prompts[2], params(1)), (prompts[2], params(2)), (prompts[5], params(1))]
    roomy = engine_of(llm, 100)
    alone = [run(roomy, [ask])[0] for ask in asks]
    assert len({tuple(sample) for samples in alone for sample in samples}) == 12
    assert roomy.scheduler.stats.num_copied_blocks >= 9
    small = engine_of(llm, 12, enable_prefix_caching=True)
    assert run(small, asks) == alone
    assert small.scheduler.stats.num_preemptions > 0


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_beam_search(llm: LLM, hf: torch.nn.Module, prompts: list[list[int]], ignore_eos: bool):
    """early_stopping=False, length_penalty 1: the same texts in the same order, with the same
    scores, be it to the end or to the model's end token, which some beams reach."""
    some, width, most = [prompts[i] for i in (0, 1, 4)], 4, 20
    ids, mask = left_padded(some)
    eos = None if ignore_eos else list(llm.engine.eos_token_ids)
    limits = dict(max_new_tokens=most, eos_token_id=eos, pad_token_id=PADDING)
    with torch.inference_mode():
        out = hf.generate(
            ids, attention_mask=mask, do_sample=False, num_beams=width,
            num_return_sequences=width, early_stopping=False, length_penalty=1.0,
            return_dict_in_generate=True, output_scores=True, **limits,
        )  # fmt: skip
    theirs = out.sequences[:, ids.shape[1] :].unflatten(0, (len(some), width)).tolist()
    scores = out.sequences_scores.unflatten(0, (len(some), width)).tolist()
    ours = llm.beam_search(some, BeamSearchParams(width, most, ignore_eos=ignore_eos))
    for prompt, output, texts, their_scores in zip(some, ours, theirs, scores, strict=True):
        found = [sequence.tokens[len(prompt) :] for sequence in output.sequences]
        assert found == [[token for token in text if token != PADDING] for text in texts]
        assert [s.score for s in output.sequences] == pytest.approx(their_scores, abs=1e-4)
    reasons = {s.finish_reason for output in ours for s in output.sequences}
    assert reasons == ({"length"} if ignore_eos else {"length", "stop"})
    assert is_empty(llm.engine)
