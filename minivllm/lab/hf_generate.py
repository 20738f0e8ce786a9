"""Hugging Face `generate` as a yardstick: static batches, padded on the left.

transformers is a development requirement; its own Llama runs on our weights, whose names are its
own.
"""

from __future__ import annotations

import time
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from minivllm.lab.measure import Run
from minivllm.lab.peers.model_files import check_plain_llama, hugging_face_values
from minivllm.lab.workload import Workload
from minivllm.weights import load_weights

if TYPE_CHECKING:
    from minivllm.lab.contestants import Progress


class HuggingFace:
    """transformers' LlamaForCausalLM with our weights.

    Raises ValueError when transformers is not installed, or for a model with Qwen's extras.
    """

    def __init__(self, model: str, dtype: torch.dtype, device: torch.device) -> None:
        transformers = _import_transformers()
        config, weights = load_weights(model, dtype, device)
        check_plain_llama(config, "hf")
        hf_config = transformers.LlamaConfig(**hugging_face_values(config, dtype))
        self.device = device
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        self.model = transformers.LlamaForCausalLM(hf_config).to(device, dtype).eval()
        if config.tie_word_embeddings:
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        self.model.load_state_dict(weights)

    def run(self, workload: Workload, progress: Progress) -> Run:
        """The workload in batches of `batch_size`, each until its slowest request is done."""
        token_times: list[list[float]] = []
        token_ids: list[list[int]] = []
        num_steps = 0
        start = time.perf_counter()
        for first in range(0, len(workload.items), workload.batch_size):
            items = workload.items[first : first + workload.batch_size]
            clock = StepClock()
            new = self._generate([item.prompt_token_ids for item in items],
                                 max(item.max_tokens for item in items), clock)  # fmt: skip
            num_steps += len(clock.times)
            times = [t - start for t in clock.times]
            token_times += [times[: item.max_tokens] for item in items]
            token_ids += [ids[: item.max_tokens] for ids, item in zip(new, items, strict=True)]
            progress(sum(item.max_tokens for item in items))
        seconds = time.perf_counter() - start
        return Run(seconds, num_steps, token_times, {"versions": self.versions}, token_ids)

    @torch.inference_mode()
    def _generate(
        self, prompts: list[list[int]], num_new: int, clock: StepClock
    ) -> list[list[int]]:
        longest = max(map(len, prompts))
        padded = [[0] * (longest - len(p)) + p for p in prompts]
        mask = [[0] * (longest - len(p)) + [1] * len(p) for p in prompts]
        rows = self.model.generate(
            torch.tensor(padded, device=self.device),  # [B, C]
            attention_mask=torch.tensor(mask, device=self.device),  # [B, C]
            max_new_tokens=num_new,
            min_new_tokens=num_new,
            do_sample=False,
            pad_token_id=0,
            stopping_criteria=[clock],
        )  # [B, C + num_new]
        return rows[:, longest:].tolist()  # [B, num_new]


class StepClock:
    """A stopping criterion that never stops, and notes when it was asked: once per step."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)  # [B]


def _import_transformers() -> ModuleType:
    try:
        import transformers
    except ImportError:
        raise ValueError(
            "the engine hf needs transformers: pip install -r requirements-dev.txt"
        ) from None
    return transformers
