"""Real traces: how many slots of a static batch do work, and how often a prefix is found again.

Counts only. With the trace's file the order of arrival is the true one; without it, lengths are
drawn from the percentiles that ship with the package.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from minivllm.lab.experiment import MODELLED, Experiment, Finding, Options, Result, Results
from minivllm.lab.jobs import Job
from minivllm.lab.lengths import trace_shaped
from minivllm.lab.trace_files import load_azure, load_mooncake

USEFUL = {
    "azure_conversation/8": 48, "azure_conversation/32": 38, "azure_code/8": 27,
    "azure_code/32": 12,
}  # fmt: skip
KV_USED = {"azure_conversation/8": 41, "azure_conversation/32": 30}
HIT_RATES = {"1000": 4.5, "10000": 21.2, "all": 36.6}  # blocks in the cache -> %
NO_ORDER = (
    "drawn from percentiles: prompt and output independent, no order of arrival; in the true order "
    "neighbours are alike (--azure FILE)"
)


def batches(jobs: Sequence[Job], size: int) -> Iterator[Sequence[Job]]:
    for start in range(0, len(jobs), size):
        yield jobs[start : start + size]


def useful_slots(jobs: Sequence[Job], batch_size: int) -> float:
    """Percent of the row-steps of static batches, in this order, that give a token.

    >>> useful_slots([Job(1, 50)] * 7 + [Job(1, 2000)], 8)
    14.6875
    """
    computed = sum(len(b) * max(j.output_len for j in b) for b in batches(jobs, batch_size))
    return 100 * sum(job.output_len for job in jobs) / computed


def kv_used(jobs: Sequence[Job], batch_size: int) -> float:
    """Percent of the KV that static batches reserve, (longest prompt + longest output) a row, that
    is ever filled."""
    reserved = sum(
        len(b) * (max(j.prompt_len for j in b) + max(j.output_len for j in b))
        for b in batches(jobs, batch_size)
    )
    return 100 * sum(job.num_tokens for job in jobs) / reserved


def hit_rate(jobs: Iterable[Job], capacity: int | None) -> float:
    """Percent of all full prompt blocks found in a cache of `capacity` blocks, the least recently
    used overwritten (None: no limit); requests come one after another.

    >>> jobs = [Job(1024, 1, block_hashes=(1, 2)), Job(1024, 1, block_hashes=(1, 3))]
    >>> hit_rate(jobs, None), hit_rate(jobs, 1), hit_rate(jobs, 0)  # one block keeps the front
    (25.0, 25.0, 0.0)
    """
    cache: OrderedDict[int, None] = OrderedDict()
    num_blocks = num_hits = 0
    for job in jobs:
        num_blocks += len(job.block_hashes)
        for name in job.block_hashes:
            if name not in cache:
                break
            num_hits += 1
        # The tail first, so that the front of a prefix, which others may share, stays the longest.
        for name in reversed(job.block_hashes):
            cache[name] = None
            cache.move_to_end(name)
            if capacity is not None and len(cache) > capacity:
                cache.popitem(last=False)
    return 100 * num_hits / max(num_blocks, 1)


def run(case: str, options: Options) -> Result:
    trace, what = case.split("/")
    if trace == "mooncake":
        if options.mooncake is None:
            return {"hit_rate": None, "requests": 0}
        jobs = load_mooncake(options.mooncake)
        rate = hit_rate(jobs, None if what == "all" else int(what))
        return {"hit_rate": rate, "requests": len(jobs)}
    from_file = trace == "azure_conversation" and options.azure is not None
    jobs = load_azure(options.azure) if from_file else trace_shaped(options.number(20000), trace)
    size = int(what)
    return {
        "useful": useful_slots(jobs, size), "kv_used": kv_used(jobs, size), "from_file": from_file
    }  # fmt: skip


def read(results: Results) -> list[Finding]:
    findings = []
    for case, theirs in USEFUL.items():
        if result := results.get(case):
            trace, size = case.split("/")
            why = NO_ORDER if case == "azure_conversation/8" and not result["from_file"] else ""
            what = f"useful slots of static batches, {trace}, {size} at once"
            findings.append(Finding(what, result["useful"], MODELLED, theirs, "%", why))
    for case, theirs in KV_USED.items():
        if result := results.get(case):
            what = f"KV used of KV reserved, {case.replace('/', ', ')} at once"
            findings.append(Finding(what, result["kv_used"], MODELLED, theirs, "%"))
    for capacity, theirs in HIT_RATES.items():
        if result := results.get(f"mooncake/{capacity}"):
            why = "" if result["requests"] else "needs the trace with its hashes: --mooncake FILE"
            if 0 < result["requests"] < 12031:
                why = f"only {result['requests']} of the trace's 12,031 requests"
            what = f"Mooncake prefix hits, {capacity} blocks in the cache"
            findings.append(Finding(what, result["hit_rate"], MODELLED, theirs, "%", why))
    return findings


TRACES = Experiment(
    "traces",
    "Azure and Mooncake: useful slots of static batches, and prefix hits",
    "lengths of the public traces; static batches in order of arrival; blocks of 512 tokens, LRU",
    [*USEFUL, *(f"mooncake/{capacity}" for capacity in HIT_RATES)],
    run,
    read,
)
