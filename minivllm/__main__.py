"""The command line: `python -m minivllm COMMAND`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from minivllm.view import map_command


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status: 0, 2 for bad input, 130 for an interrupt."""
    args = make_parser().parse_args(argv)
    try:
        if args.threads is not None:
            set_threads(args.threads)
        if args.json and not Path(args.json).absolute().parent.is_dir():
            raise ValueError(f"--json {args.json}: there is no such folder")
        args.run(args)
    except (ValueError, OSError) as error:
        print(f"minivllm: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("minivllm: interrupted", file=sys.stderr)
        return 130
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    parser = argparse.ArgumentParser(prog="python -m minivllm", description=__doc__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    add_demo(commands)
    add_generate(commands)
    add_bench(commands)
    add_lab(commands)
    map_command.add_parser(commands)
    return parser


def add_command(commands, name: str, text: str, run) -> argparse.ArgumentParser:
    """A command with the options that all have in common."""
    parser = commands.add_parser(
        name, help=text, description=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--model", default="smollm2", help="smollm2, a GGUF file, a folder, or tiny"
    )
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--threads", type=int, help="CPU threads of torch (its own choice)")
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    parser.set_defaults(run=run)
    return parser


def add_demo(commands) -> None:
    text = "Answer 32 chat prompts by static batching, then by continuous batching."
    add_command(commands, "demo", text, run_demo)


def add_generate(commands) -> None:
    text = "Answer prompts, all at once; each as a chat message."
    parser = add_command(commands, "generate", text, run_generate)
    parser.add_argument("prompts", nargs="+", metavar="PROMPT")
    parser.add_argument("--raw", action="store_true", help="continue the text, no chat template")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--stop", action="append", help="end at this text (may be repeated)")


def add_bench(commands) -> None:
    text = "Measure the engines on one workload: warmed up, in turns, the median counts."
    parser = add_command(commands, "bench", text, run_bench)
    parser.add_argument("--workload", default="w1", help="w1, w2, w3, w4 or a JSON file")
    engines = "of minivllm, equal_seats, static, hf, vllm, llamacpp, hf_cb"
    parser.add_argument("--engine", default="minivllm,static", help=engines)
    parser.add_argument("--runs", type=int, default=3, help="counted runs of each engine")
    parser.add_argument("--seed", type=int, default=0, help="of the workload")
    parser.add_argument("--prefix-caching", action="store_true", help="where an engine has it")
    steps = "decode steps of 1 to 64 requests against the machine's limits, instead of a workload"
    parser.add_argument("--steps", action="store_true", help=steps)


def add_lab(commands) -> None:
    from minivllm.lab.lab_command import add_options

    text = "Run the experiments: the published figures, ours beside them; alone: list them."
    add_options(add_command(commands, "lab", text, run_lab))


def set_threads(num_threads: int) -> None:
    import torch

    if num_threads < 1:
        raise ValueError(f"--threads must be at least 1, got {num_threads}")
    torch.set_num_threads(num_threads)


def run_demo(args: argparse.Namespace) -> None:
    from minivllm.lab.demo import demo

    demo(args)


def run_bench(args: argparse.Namespace) -> None:
    if args.steps:
        from minivllm.lab.step_speed import bench_steps

        bench_steps(args)
        return
    from minivllm.lab.bench import bench

    bench(args)


def run_lab(args: argparse.Namespace) -> None:
    from minivllm.lab.lab_command import lab

    lab(args)


def run_generate(args: argparse.Namespace) -> None:
    """Answer what can be answered; each prompt that cannot be served costs one line."""
    from minivllm.llm import LLM
    from minivllm.sampling_params import SamplingParams

    params = SamplingParams(
        max_tokens=args.max_tokens, temperature=args.temperature, top_p=args.top_p,
        top_k=args.top_k, seed=args.seed, stop=args.stop,
    )  # fmt: skip
    llm = LLM(args.model, dtype=args.dtype, device=args.device)
    outputs, refused = {}, {}
    for index, text in enumerate(args.prompts):
        try:
            prompt = text if args.raw else llm.chat_prompt([{"role": "user", "content": text}])
            outputs[index] = llm.add_request(prompt, params)
        except ValueError as error:
            refused[index] = error
    while llm.has_unfinished_requests:
        llm.step()
    for index, output in outputs.items():
        print(f"> {args.prompts[index]}\n{output.outputs[0].text}\n")
    if args.json:
        rows = [
            {"prompt": args.prompts[index], "text": output.outputs[0].text,
             "token_ids": output.outputs[0].token_ids,
             "finish_reason": output.outputs[0].finish_reason}
            for index, output in outputs.items()
        ]  # fmt: skip
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if refused:
        lines = [f"prompt {index + 1}: {error}" for index, error in refused.items()]
        raise ValueError("\nminivllm: ".join(lines))


if __name__ == "__main__":
    sys.exit(main())
