"""vLLM's CPU build as a child of the benchmark; runs in a virtual environment of its own.

Its engine runs in this process and is stepped by hand, as ours is, so that steps are counted and
every token has its time.
"""

from __future__ import annotations

import os
import time
from typing import Any

from minivllm.lab.peers.protocol import Answer, Job, serve


class VLLM:
    """vllm.LLM on a Hugging Face folder; its prefix cache is emptied before each run."""

    def __init__(self, job: Job) -> None:
        import torch
        import vllm

        block_size = 128  # what vLLM takes on a CPU
        # The rows of the workload's KV memory, each rounded up to blocks; one block is vLLM's own.
        num_rows = -(-job.num_kv_slots // job.max_model_len)
        num_blocks = 1 + num_rows * -(-job.max_model_len // block_size)
        self.pid = os.getpid()
        self.prefix_caching = job.prefix_caching
        self.llm = vllm.LLM(
            model=job.model,
            skip_tokenizer_init=True,
            dtype=job.dtype,
            max_model_len=job.max_model_len,
            max_num_seqs=job.max_num_seqs,
            block_size=block_size,
            num_gpu_blocks_override=num_blocks,
            enable_prefix_caching=job.prefix_caching,
            seed=0,
        )
        self.facts = {
            "versions": {"vllm": vllm.__version__, "torch": torch.__version__},
            "kv_slots": (num_blocks - 1) * block_size,
        }

    def run(self, requests: list[dict[str, Any]]) -> Answer:
        """All requests are added, then the clock starts."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        engine = self.llm.llm_engine
        if self.prefix_caching:
            self.llm.reset_prefix_cache()
        for index, request in enumerate(requests):
            params = SamplingParams(
                temperature=0, ignore_eos=True, max_tokens=request["max_tokens"], detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )  # fmt: skip
            prompt = {"prompt_token_ids": request["prompt_token_ids"]}
            engine.add_request(str(index), prompt, params)
        times: list[list[float]] = [[] for _ in requests]
        token_ids: list[list[int]] = [[] for _ in requests]
        cached = [0] * len(requests)
        num_steps = 0
        start = time.perf_counter()
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = time.perf_counter() - start
            num_steps += 1
            for output in outputs:
                index = int(output.request_id)
                new = output.outputs[0].token_ids
                token_ids[index] += list(new)
                times[index] += [now] * len(new)
                cached[index] = max(cached[index], output.num_cached_tokens or 0)
        return Answer(time.perf_counter() - start, num_steps, times, token_ids, sum(cached))

    def close(self) -> None:
        """The process ends with its standard input; nothing outlives it."""


def main() -> None:
    """Serve the benchmark."""
    serve(VLLM)
