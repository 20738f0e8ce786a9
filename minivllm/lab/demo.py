"""The demo: 32 people ask a real chat model at once, first the old way, then the new one.

Both ways have the same weights and the same KV memory, and give the same answers.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from minivllm.baselines.static_batching import StaticBatchingEngine
from minivllm.baselines.static_executor import StaticModelExecutor
from minivllm.engine import Engine
from minivllm.lab.demo_prompts import demo_prompts
from minivllm.llm import LLM
from minivllm.outputs import RequestOutput
from minivllm.sampling_params import SamplingParams
from minivllm.stats import KVUsage
from minivllm.step_records import SchedulerOutput

BATCH_SIZE, ROW_SLOTS, BLOCK_SIZE = 8, 512, 16
NUM_BLOCKS = BATCH_SIZE * ROW_SLOTS // BLOCK_SIZE
STREAMED = 2  # the place of the question whose answer is printed as it grows


@dataclass
class Tally:
    """What one way of batching did. A row-step is one row computed in one step."""

    name: str
    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0
    row_steps: int = 0
    reserved_blocks: list[int] = field(default_factory=list)  # after each step
    used_blocks: list[int] = field(default_factory=list)  # of those, blocks with a living token
    answers: list[list[int]] = field(default_factory=list)  # token ids

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    def figures(self) -> dict[str, float]:
        """The tally as numbers for a table or a file."""
        return {
            "tokens": self.tokens,
            "steps": self.steps,
            "useful_slots": self.tokens / self.row_steps,  # row-steps that gave a token
            "tokens_per_second": self.tokens_per_second,
            "kv_blocks_reserved": sum(self.reserved_blocks) / self.steps,
            "kv_blocks_used": sum(self.used_blocks) / self.steps,
            "seconds": self.seconds,
        }


def demo(args: Namespace) -> dict[str, Any]:
    """`python -m minivllm demo`: run both ways, print a table, write the JSON; returns it."""
    print(f"Loading {args.model} ...", flush=True)
    start = time.perf_counter()
    llm = LLM(
        args.model,
        dtype=args.dtype,
        device=args.device,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        max_num_seqs=4 * BATCH_SIZE,
        max_model_len=ROW_SLOTS,
    )
    print(f"... {llm.model.dtype} on {llm.device}, {time.perf_counter() - start:.1f} s")
    list(llm.stream("Hello", SamplingParams(max_tokens=2)))  # warm up
    chats = [llm.chat_prompt([{"role": "user", "content": q}]) for q, _ in demo_prompts()]
    params = [SamplingParams(temperature=0, max_tokens=most) for _, most in demo_prompts()]
    static = run_static(llm, chats, params)
    continuous = run_continuous(llm, chats, params)
    print_table(static, continuous)
    ratio = continuous.tokens_per_second / static.tokens_per_second
    figures = {"static": static.figures(), "continuous": continuous.figures(), "ratio": ratio}
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return figures


def run_static(llm: LLM, chats: list[dict], params: list[SamplingParams]) -> Tally:
    """Batches of 8 rows; each row reserves its 512 KV slots until the slowest of the batch ends."""
    print(f"\nStatic batching: {BATCH_SIZE} rows at a time, each until the slowest has ended.")
    tally = Tally("static batching")
    executor = StaticModelExecutor(llm.model, BATCH_SIZE, ROW_SLOTS)
    engine = StaticBatchingEngine(executor, BATCH_SIZE, ROW_SLOTS, llm.engine.eos_token_ids)
    tokens: list[list[int]] = [[] for _ in chats]
    for index, (chat, wanted) in enumerate(zip(chats, params, strict=True)):
        engine.add_request(str(index), chat["prompt_token_ids"], wanted)
    with Stopwatch(tally), tqdm(unit=" tokens", leave=False) as bar:
        while engine.has_unfinished_requests:
            for output in engine.step():
                tokens[int(output.request_id)] += output.new_token_ids
            alive = [row for row in engine.rows if not row.is_finished]
            tally.reserved_blocks.append(NUM_BLOCKS)
            tally.used_blocks.append(
                sum(-(-row.num_computed_tokens // BLOCK_SIZE) for row in alive)
            )
            bar.update(sum(map(len, tokens)) - bar.n)
    tally.steps, tally.row_steps = engine.num_steps, engine.num_row_steps
    tally.tokens, tally.answers = sum(map(len, tokens)), tokens
    return tally


def run_continuous(llm: LLM, chats: list[dict], params: list[SamplingParams]) -> Tally:
    """The engine: requests enter as soon as blocks are free, and leave them when they end."""
    print("\nContinuous batching on a paged KV cache, in the same memory. One of the 32 answers:")
    print(f"\n> {demo_prompts()[STREAMED][0]}")
    tally = Tally("continuous batching")

    def count(engine: Engine, scheduler_output: SchedulerOutput) -> None:
        usage = KVUsage.of(engine.scheduler.kv, engine.scheduler.running)
        tally.reserved_blocks.append(usage.num_used_blocks)
        tally.used_blocks.append(usage.num_used_blocks - usage.num_reserved_blocks)
        tally.row_steps += len(scheduler_output.requests)
        tally.steps += 1

    llm.engine.observers.append(count)
    with Stopwatch(tally):
        outputs = show_streams(llm.stream(chats, params))
    llm.engine.observers.remove(count)
    tally.answers = [output.outputs[0].token_ids for output in outputs]
    tally.tokens = sum(map(len, tally.answers))
    print("\nThree of the short ones:")
    for place in (0, 1, 5):
        print(f"> {demo_prompts()[place][0]}\n{outputs[place].outputs[0].text.strip()}")
    return tally


class Stopwatch:
    """Puts the seconds that a with-block takes into a tally."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.tally.seconds = time.perf_counter() - self.start


def show_streams(stream: Iterator[RequestOutput]) -> list[RequestOutput]:
    """Print one long answer as it grows; returns all, in the prompts' order."""
    outputs: dict[int, RequestOutput] = {}
    num_shown = 0
    for output in stream:
        outputs[int(output.request_id)] = output
        streamed = outputs.get(min(outputs) + STREAMED)
        if streamed is not None and streamed.outputs:
            text = streamed.outputs[0].text
            print(text[num_shown:], end="", flush=True)
            num_shown = len(text)
    print()
    return [outputs[request_id] for request_id in sorted(outputs)]


def print_table(static: Tally, continuous: Tally) -> None:
    """The two ways side by side, and whether their answers are the same."""
    rows = {
        "tokens": "{tokens:.0f}",
        "steps": "{steps:.0f}",
        "row-steps that gave a token": "{useful_slots:.0%}",
        "KV blocks reserved, on average": "{kv_blocks_reserved:.0f}",
        "KV blocks holding living tokens": "{kv_blocks_used:.0f}",
        "seconds": "{seconds:.1f}",
        "tokens per second": "{tokens_per_second:.1f}",
    }
    print(f"\n{'':34}{static.name:>20}{continuous.name:>22}")
    for label, form in rows.items():
        old, new = (form.format(**tally.figures()) for tally in (static, continuous))
        print(f"{label:34}{old:>20}{new:>22}")
    same = sum(a == b for a, b in zip(static.answers, continuous.answers, strict=True))
    ratio = continuous.tokens_per_second / static.tokens_per_second
    print(f"\n{same} of {len(static.answers)} answers are the same, token for token.")
    print(f"Continuous batching gave {ratio:.1f} times the tokens per second.")
