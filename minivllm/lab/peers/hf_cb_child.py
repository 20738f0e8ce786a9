"""Hugging Face's continuous batching as a child of the benchmark: paged, with torch's SDPA."""

from __future__ import annotations

import os
import time
from typing import Any

from minivllm.lab.peers.protocol import Answer, Job, serve

PAGE_SIZE = 16


class ContinuousBatching:
    """transformers' own manager; each run gets a new one, so it begins with an empty cache."""

    def __init__(self, job: Job) -> None:
        import torch
        import transformers

        torch.set_num_threads(job.threads)
        self.job, self.pid = job, os.getpid()
        self.num_blocks = -(-max(job.num_kv_slots, job.max_model_len) // PAGE_SIZE)
        dtype = getattr(torch, job.dtype)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            job.model, dtype=dtype, attn_implementation="sdpa"
        ).eval()
        self.num_steps = 0
        self.model.register_forward_pre_hook(self.count_step)
        self.facts = {
            "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
            "kv_slots": self.num_blocks * PAGE_SIZE,
        }

    def count_step(self, *unused: object) -> None:
        """The model was called once more."""
        self.num_steps += 1

    def run(self, requests: list[dict[str, Any]]) -> Answer:
        """Requests enter in their order, from the moment the clock starts."""
        from transformers import ContinuousBatchingConfig, GenerationConfig

        config = ContinuousBatchingConfig(
            page_size=PAGE_SIZE,
            num_blocks=self.num_blocks,
            max_requests_per_batch=self.job.max_num_seqs,
            allow_block_sharing=self.job.prefix_caching,
        )
        greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        with self.model.continuous_batching_context_manager(
            generation_config=greedy, continuous_batching_config=config
        ) as manager:
            self.num_steps = 0
            start = time.perf_counter()
            for index, request in enumerate(requests):
                manager.add_request(
                    request["prompt_token_ids"], str(index), request["max_tokens"],
                    record_timestamps=True,
                )  # fmt: skip
            results = {}
            while len(results) < len(requests):
                output = manager.get_result(timeout=1)
                if output is not None and output.error is not None:
                    raise RuntimeError(output.error)
                if output is not None and output.is_finished():
                    results[int(output.request_id)] = output
                if output is None and not manager.is_running():
                    raise RuntimeError("the thread that generates has ended")
        ordered = [results[index] for index in range(len(requests))]
        times = [[t - start for t in output.timestamps] for output in ordered]
        token_ids = [list(output.generated_tokens) for output in ordered]
        return Answer(max(each[-1] for each in times), self.num_steps, times, token_ids)

    def close(self) -> None:
        """Nothing outlives the process."""


def main() -> None:
    """Serve the benchmark."""
    serve(ContinuousBatching)
