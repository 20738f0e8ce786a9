"""vLLM's Figure 15: the blocks that sharing saves, for parallel samples and for beams.

    saved = 1 - blocks in use / blocks that the same tables would need without sharing

summed over all steps. Parallel samples share the prompt's full blocks. Beams share whatever their
last common ancestor had, so what they save depends on how soon the best beams descend from one, and
that on the model's probabilities. Here the logits of a step are independent normal numbers (a
"random energy" model), as wide as gives the entropy of a good model's text: perplexity 10.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import NormalDist

from minivllm.baselines.systems import SYSTEMS, settings_of
from minivllm.beam_search import BeamSearch, BeamSearchParams
from minivllm.engine import Engine
from minivllm.lab.experiment import MODELLED, Experiment, Finding, Options, Result, Results
from minivllm.lab.experiments.memory import NUM_SLOTS, config_of
from minivllm.lab.jobs import Job
from minivllm.lab.lengths import alpaca_like, sharegpt_like
from minivllm.lab.simulation import TOKEN, CountingExecutor
from minivllm.sampling_params import SamplingParams
from minivllm.scheduler import Scheduler
from minivllm.step_records import ModelOutput, SchedulerOutput

SIGMA, VOCAB = 5.8, 50272  # of the logits; the entropy is then about ln 10
PUBLISHED = {
    "alpaca/parallel/2": 6.09, "alpaca/parallel/4": 8.53, "alpaca/parallel/6": 9.79,
    "alpaca/beam/2": 37.56, "alpaca/beam/4": 53.13, "alpaca/beam/6": 55.16,
    "sharegpt/parallel/2": 16.2, "sharegpt/parallel/6": 30.5,
    "sharegpt/beam/2": 44.3, "sharegpt/beam/6": 66.3,
}  # fmt: skip
REASONS = {
    "alpaca/parallel/4": "what can be shared is a prompt's full blocks, and a log-normal of mean "
    "19 has more prompts above 16 tokens than the data set; its lengths are not published",
    "alpaca/beam/6": "independent logits let one beam's offspring take over sooner than a model's, "
    "where beams of nearly the same text go on side by side; the width of the logits (perplexity "
    "64 to 10) moves this figure by one point only",
    "sharegpt/parallel/6": "the published range, 16.2 to 30.5 %, is taken as from 2 to 6 samples",
}  # fmt: skip


class SharingMeter:
    """An observer that sums up, over all steps, the blocks in use and the places in tables."""

    def __init__(self) -> None:
        self.num_used = self.num_wanted = 0

    def __call__(self, engine: Engine, output: SchedulerOutput) -> None:
        pool = engine.scheduler.kv.pool
        self.num_used += pool.num_blocks - pool.num_free_blocks
        self.num_wanted += sum(r.block_table.num_blocks for r in engine.scheduler.running)

    @property
    def saved(self) -> float:
        """Percent."""
        return 100 * (1 - self.num_used / self.num_wanted)


class RandomBeams(CountingExecutor):
    """Offers each beam its likeliest tokens under independent normal logits."""

    vocab_size = VOCAB

    def __init__(self, block_size: int, seed: int = 0) -> None:
        super().__init__(None, block_size)
        self.rng = random.Random(seed)

    def execute(self, output: SchedulerOutput) -> ModelOutput:
        answer = super().execute(output)
        for index, request in enumerate(output.requests):
            if answer.sampled_token_ids[index]:
                answer.sampled_token_ids[index] = []
                scores = best_logprobs(self.rng, request.params.logprobs)
                answer.logprobs[index] = [dict(enumerate(scores))]
        return answer


def best_logprobs(rng: random.Random, num_best: int) -> list[float]:
    """The largest log probabilities of VOCAB tokens with normal logits, the best first.

    The k-th largest of V normals is where the upper tail holds (E1 + ... + Ek) / V, with
    exponential E; what the others add to the softmax's sum is their expectation.
    """
    normal, tail, logits = NormalDist(), 0.0, []
    for _ in range(max(num_best, 8)):
        tail += rng.expovariate(1.0)
        logits.append(-SIGMA * normal.inv_cdf(tail / VOCAB))
    others = VOCAB * math.exp(SIGMA**2 / 2) * normal.cdf(logits[-1] / SIGMA - SIGMA)
    log_sum = math.log(sum(map(math.exp, logits)) + others)
    return [logit - log_sum for logit in logits[:num_best]]


def run(case: str, options: Options) -> Result:
    workload, kind, width = case.split("/")
    family = alpaca_like if workload == "alpaca" else sharegpt_like
    jobs = family(options.number(240 if workload == "alpaca" else 80, 30))
    # So much memory that nobody is preempted: our samples would come back without sharing, while
    # the paper's come and go together.
    config = replace(config_of("vllm"), num_blocks=16 * NUM_SLOTS // 16, max_num_seqs=48)
    config = settings_of(SYSTEMS["vllm"], config)
    meter = SharingMeter()
    run_kind = run_parallel if kind == "parallel" else run_beams
    run_kind(jobs, int(width), lambda executor: _engine(config, executor, meter))
    return {"saved": meter.saved}


def _engine(config, executor: CountingExecutor, meter: SharingMeter) -> Engine:
    engine = Engine(Scheduler(config), executor)
    engine.observers.append(meter)
    return engine


def run_parallel(jobs: Sequence[Job], width: int, make: Callable[..., Engine]) -> None:
    """Each job as one request with `width` samples, all of its output length."""
    engine = make(CountingExecutor(None, 16))
    for index, job in enumerate(jobs):
        params = SamplingParams(n=width, ignore_eos=True, max_tokens=job.output_len)
        engine.add_request(str(index), [TOKEN] * job.prompt_len, params)
    while engine.has_unfinished_requests:
        engine.step()


def run_beams(jobs: Sequence[Job], width: int, make: Callable[..., Engine]) -> None:
    """Each job as one beam search; so many at once as the pool holds without preemption."""
    engine = make(RandomBeams(16))
    searches: dict[str, BeamSearch] = {}
    coming = list(enumerate(jobs))
    while coming or searches:
        while coming and len(searches) < 48 // width:
            index, job = coming.pop(0)
            params = BeamSearchParams(
                beam_width=width, max_tokens=job.output_len, ignore_eos=True
            )
            prompt = [TOKEN] * job.prompt_len
            searches[str(index)] = BeamSearch(engine, str(index), prompt, params)
        for result in engine.step():
            if result.request_id in searches:
                searches[result.request_id].take(result)
        searches = {name: search for name, search in searches.items() if search.is_running}


def read(results: Results) -> list[Finding]:
    findings = []
    for case, theirs in PUBLISHED.items():
        if result := results.get(case):
            workload, kind, width = case.split("/")
            what = f"Figure 15, {workload}, {kind}, {width}"
            why = REASONS.get(case, "")
            findings.append(Finding(what, result["saved"], MODELLED, theirs, "% saved", why))
    return findings


SHARING = Experiment(
    "sharing",
    "vLLM's Figure 15: memory saved by sharing",
    "blocks of 16; all samples of a request as long as the trace's output; beams over random "
    "logits of perplexity 10",
    list(PUBLISHED),
    run,
    read,
)
