"""The benchmark: each engine runs the same workload several times, warmed up; the median counts.

The runs of the engines take turns, so that a slow minute of the machine hits all of them.
"""

from __future__ import annotations

import json
import statistics
from argparse import Namespace
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from minivllm.device import choose_device, choose_dtype
from minivllm.lab.contestants import Contestant, Progress, run_minivllm, run_static
from minivllm.lab.facts import facts as known_facts
from minivllm.lab.hf_generate import HuggingFace
from minivllm.lab.measure import Run
from minivllm.lab.memory import peak_memory_bytes, reset_peak_memory
from minivllm.lab.peers.start import PEERS, start_peers
from minivllm.lab.workload import Workload, built_in, load
from minivllm.model import LlamaModel
from minivllm.weights import load_weights, read_facts

IN_PROCESS = ("minivllm", "equal_seats", "static", "hf")
ENGINES = (*IN_PROCESS, *PEERS)


def bench(args: Namespace) -> list[dict[str, Any]]:
    """`python -m minivllm bench`: run, print a table, write the JSON; returns its rows."""
    device = choose_device(args.device)
    dtype = choose_dtype(args.dtype, device)
    engines = check_engines(args.engine.split(","))
    if args.runs < 1:
        raise ValueError(f"--runs must be at least 1, got {args.runs}")
    facts = read_facts(args.model)
    is_file = args.workload.endswith(".json") or Path(args.workload).is_file()
    make = load if is_file else built_in
    workload = make(args.workload, facts.config.vocab_size, args.seed)
    if workload.row_slots > facts.context_length:
        raise ValueError(
            f"workload {workload.name} needs rows of {workload.row_slots} tokens; {args.model} was "
            f"made for {facts.context_length}"
        )
    print(
        f"{workload.name}: {len(workload.items)} requests, {workload.num_tokens} tokens, "
        f"{dtype} on {device}, {torch.get_num_threads()} threads, {args.runs} runs after a warm-up"
    )
    with ExitStack() as stack:
        contestants = make_contestants(engines, args, dtype, device, workload, stack)
        runs = take_turns(contestants, workload, args.runs)
    first = runs[engines[0]]
    rows = [
        report(name, runs[name], workload, dtype)
        | {"same_tokens_as_first": same_tokens(runs[name][0], first[0]) if first else None}
        for name in engines
        if runs[name]
    ]
    print_table(rows)
    if args.json:
        Path(args.json).write_text(json.dumps(rows[0] if len(rows) == 1 else rows, indent=1) + "\n")
    return rows


def check_engines(names: list[str]) -> list[str]:
    """The same names. Raises ValueError for an engine that does not exist."""
    for name in names:
        if name not in ENGINES:
            raise ValueError(f"engine {name!r} is not one of {', '.join(ENGINES)}")
    return names


def make_contestants(
    engines: list[str], args: Namespace, dtype: torch.dtype, device: torch.device,
    workload: Workload, stack: ExitStack,
) -> dict[str, Contestant]:  # fmt: skip
    """Load what each engine needs; ours and static batching share one model.

    equal_seats is minivllm with as many requests at once as static batching has rows: what the
    schedule alone brings, without the memory that paging frees.
    The peers' processes end with `stack`.
    """
    contestants: dict[str, Contestant] = {}
    peers = [name for name in PEERS if name in engines]
    if peers:
        if device.type != "cpu":
            raise ValueError(f"the engines {', '.join(PEERS)} run on a CPU here, not on {device}")
        started = start_peers(peers, args.model, dtype, workload, args.prefix_caching, stack)
        contestants |= {name: peer.run for name, peer in started.items()}
    if {"minivllm", "equal_seats", "static"} & set(engines):
        config, weights = load_weights(args.model, dtype, device)
        model = LlamaModel(config, weights, dtype, device)
        options = {"enable_prefix_caching": args.prefix_caching}
        contestants["minivllm"] = partial(run_minivllm, model, **options)
        seats = {"max_num_seqs": workload.batch_size}
        contestants["equal_seats"] = partial(run_minivllm, model, **options, **seats)
        contestants["static"] = partial(run_static, model)
    if "hf" in engines:
        contestants["hf"] = HuggingFace(args.model, dtype, device).run
    for name in set(IN_PROCESS) & set(contestants):
        contestants[name] = partial(with_peak_memory, contestants[name])
    return {name: contestants[name] for name in engines}


def with_peak_memory(contestant: Contestant, workload: Workload, progress: Progress) -> Run:
    """A run with the peak of this process's memory; all engines that live in it count."""
    reset_peak_memory()
    run = contestant(workload, progress)
    run.peak_memory_bytes = peak_memory_bytes()
    return run


def take_turns(
    contestants: dict[str, Contestant], workload: Workload, num_runs: int
) -> dict[str, list[Run]]:
    """Warm each engine up, then let them run in turns. An interrupt keeps what is done."""
    runs: dict[str, list[Run]] = {name: [] for name in contestants}
    few = [replace(item, max_tokens=min(item.max_tokens, 4)) for item in workload.items[:4]]
    warm_up = replace(workload, items=few)
    total = workload.num_tokens * num_runs * len(contestants)
    with tqdm(total=total, unit="tok", leave=False) as bar:
        try:
            for name, run in contestants.items():
                bar.set_description(f"{name} warm-up")
                run(warm_up, ignore)
            for turn in range(num_runs):
                for name, run in contestants.items():
                    bar.set_description(f"{name} run {turn + 1}")
                    runs[name].append(run(workload, bar.update))
        except KeyboardInterrupt:
            bar.write("interrupted: the figures are of the runs that were finished")
    return runs


def ignore(num_tokens: int) -> None:
    """The progress of a warm-up, which nobody counts."""


def report(name: str, runs: list[Run], workload: Workload, dtype: torch.dtype) -> dict[str, Any]:
    """The figures of the middle run, the median throughput, and the throughput of each run.

    Of an even number of runs the faster of the two in the middle gives the other figures.
    """
    ordered = sorted(runs, key=lambda run: run.tokens_per_second)
    middle = ordered[len(ordered) // 2]
    return {
        "workload": workload.name,
        "engine": name,
        "dtype": str(dtype).removeprefix("torch."),
        **known_facts(),
        **middle.summary(),
        "tokens_per_second": statistics.median(run.tokens_per_second for run in runs),
        "runs": [run.tokens_per_second for run in runs],
        "threads": torch.get_num_threads(),
    }


def same_tokens(run: Run, first: Run) -> float | None:
    """The share of requests with the very tokens of the first engine; None where one is unknown.

    >>> runs = [Run(1.0, 1, [], token_ids=ids) for ids in ([[5, 6], [7]], [[5, 8], [7]])]
    >>> same_tokens(runs[1], runs[0])
    0.5
    """
    if not run.token_ids or not first.token_ids:
        return None
    pairs = zip(run.token_ids, first.token_ids, strict=True)
    return statistics.fmean(ours == theirs for ours, theirs in pairs)


def print_table(rows: list[dict[str, Any]]) -> None:
    """One line an engine: throughput, its ratio to the first, the share of requests with the same
    tokens as the first, steps, latencies in milliseconds."""
    columns = ("tok/s", "ratio", "same", "steps")
    times = ("TTFT mean", "p50", "p99", "TPOT mean", "p50", "p99")
    print(("{:<12}{:>10}" + "{:>8}" * 3 + "{:>10}" * 6).format("engine", *columns, *times))
    for row in rows:
        times = [
            row[kind][key] * 1000 for kind in ("ttft", "tpot") for key in ("mean", "p50", "p99")
        ]
        ratio = row["tokens_per_second"] / rows[0]["tokens_per_second"]
        same, steps = row["same_tokens_as_first"], row["steps"]
        print(
            f"{row['engine']:<12}{row['tokens_per_second']:>10.1f}{ratio:>8.2f}"
            + ("       -" if same is None else f"{same:>7.0%} ")
            + ("       -" if steps is None else f"{steps:>8}")
            + "".join(f"{value:>7.0f} ms" for value in times)
        )
    for row in rows:
        print(f"{row['engine']}: {kv_use(row)}{setting(row)}")


def setting(row: dict[str, Any]) -> str:
    """An engine's versions, preloads and peak memory, as the end of a sentence."""
    versions = ", ".join(f"{name} {value}" for name, value in row["versions"].items())
    preloads = f"; preloaded {', '.join(row['preloads'])}" if row["preloads"] else ""
    peak = row["peak_memory_bytes"]
    return ("" if peak is None else f"; {peak / 1e6:.0f} MB at most") + f"; {versions}{preloads}"


def kv_use(row: dict[str, Any]) -> str:
    """What an engine tells of its KV memory, in a sentence."""
    if "kv_blocks" in row:
        return (
            f"{row['kv_blocks_used_mean']:.0f} of {row['kv_blocks']} KV blocks in use on average, "
            f"{row['kv_blocks_used_peak']} at most, {row['preemptions']} preemptions, "
            f"{row['cached_tokens']} prompt tokens from the prefix cache"
        )
    if "row_steps" in row:
        share = 100 * row["useful_row_steps"] / row["row_steps"]
        return (
            f"all {row['kv_slots_reserved']} KV slots reserved all the time; "
            f"{share:.0f} % of the row-steps gave a token"
        )
    if "kv_slots" in row:
        cached = f", {row['cached_tokens']} prompt tokens cached" if "cached_tokens" in row else ""
        return f"KV memory for {row['kv_slots']} tokens{cached}"
    return "its KV memory is its own affair"
