"""`python -m minivllm map`: record a run of the model and write it as a page to look at."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minivllm.sampling_params import SamplingParams
from minivllm.view.block_map import BlockMap
from minivllm.view.recorder import Recorder, text_of_token
from minivllm.view.trace import Trace

if TYPE_CHECKING:
    from minivllm.llm import LLM

BLOCK_SIZE, NUM_BLOCKS, MOST_TOKENS = 8, 28, 40
ROW_SLOTS, BATCH_SIZE = 128, 4  # of static batching


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Register the command `map` with the parser of the whole command line."""
    parser = subparsers.add_parser("map", help="record a run and write its block map as a page")
    parser.add_argument("--out", default="map.html", help="the page (default: %(default)s)")
    parser.add_argument(
        "--trace", help="also write the trace as JSON lines, or read it with --load"
    )
    parser.add_argument(
        "--load", action="store_true", help="show the trace of --trace, run nothing"
    )
    parser.add_argument("--model", default="smollm2", help="as for LLM (default: %(default)s)")
    parser.add_argument("--num-prompts", type=int, default=8, help="how many ask at once")
    blocks = f"KV blocks in the pool (default: {NUM_BLOCKS}; with --static, as much as its rows)"
    parser.add_argument("--num-blocks", type=int, help=blocks)
    parser.add_argument("--block-size", type=int, default=BLOCK_SIZE, help="tokens in a block")
    parser.add_argument("--static", action="store_true", help="static batching beside it")
    parser.add_argument("--text", action="store_true", help="print the text map too")
    parser.set_defaults(run=run, threads=None, json=None)  # what every command has
    return parser


def run(args: argparse.Namespace) -> None:
    """Do what the arguments say. Raises ValueError, one line, for what cannot be done."""
    if args.load and (not args.trace or args.static):
        raise ValueError("--load shows one trace: name it with --trace, and leave out --static")
    if args.load:
        traces = [Trace.load(args.trace)]
    else:
        traces = record_demo(
            args.model, args.num_prompts, args.num_blocks, args.block_size, args.static
        )
        if args.trace:
            traces[-1].save(args.trace)
    block_map = BlockMap(*traces, timeline=True, curve=True)
    block_map.save(args.out)
    if args.text:
        print(block_map.text())
    print(f"{args.out}: {len(traces[-1]) - 1} iterations, {Path(args.out).stat().st_size} bytes")


def record_demo(
    model: str = "smollm2",
    num_prompts: int = 8,
    num_blocks: int | None = None,
    block_size: int = BLOCK_SIZE,
    static: bool = False,
) -> list[Trace]:
    """Ask a model a few questions at once and record it: [continuous], or [static, continuous].

    The pool is small and the questions begin alike, so that there is something to see: blocks are
    shared, run out, and are taken back.
    """
    from minivllm.lab.demo_prompts import demo_prompts
    from minivllm.llm import LLM

    if num_blocks is None:
        num_blocks = BATCH_SIZE * ROW_SLOTS // block_size if static else NUM_BLOCKS
    questions = demo_prompts()[:num_prompts]
    if num_prompts < 1:
        raise ValueError(f"num_prompts must be >= 1, got {num_prompts}")
    llm = LLM(
        model, num_blocks=num_blocks, block_size=block_size, max_num_seqs=8,
        max_num_batched_tokens=64, max_model_len=min(ROW_SLOTS, num_blocks * block_size),
        enable_prefix_caching=True,
    )  # fmt: skip
    chats = [llm.chat_prompt([{"role": "user", "content": text}]) for text, _ in questions]
    params = [SamplingParams(temperature=0, max_tokens=min(most, MOST_TOKENS))
              for _, most in questions]  # fmt: skip
    names = [text for text, _ in questions]  # a request is named by what it asks
    traces = [_record_static(llm, names, chats, params, block_size)] if static else []
    with Recorder(llm, title="Continuous batching") as recorder:
        for name, chat, wanted in zip(names, chats, params, strict=True):
            llm.add_request(chat, wanted, name)
        while llm.engine.has_unfinished_requests:
            llm.step()
    return [*traces, recorder.trace]


def _record_static(
    llm: LLM,
    names: Sequence[str],
    chats: Sequence[dict[str, Any]],
    params: Sequence[SamplingParams],
    block_size: int,
) -> Trace:
    from minivllm.baselines.static_batching import StaticBatchingEngine
    from minivllm.baselines.static_executor import StaticModelExecutor

    executor = StaticModelExecutor(llm.model, BATCH_SIZE, ROW_SLOTS)
    engine = StaticBatchingEngine(executor, BATCH_SIZE, ROW_SLOTS, llm.engine.eos_token_ids)
    decode = text_of_token(llm.tokenizer)
    with Recorder(engine, decode, "Static batching", block_size) as recorder:
        for name, chat, wanted in zip(names, chats, params, strict=True):
            engine.add_request(name, chat["prompt_token_ids"], wanted)
        while engine.has_unfinished_requests:
            engine.step()
    return recorder.trace


def main(arguments: Sequence[str] | None = None) -> None:
    """The command on its own: `python -m minivllm.view.map_command`."""
    parser = argparse.ArgumentParser(prog="minivllm")
    add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["map", *(arguments or [])])
    try:
        args.run(args)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
