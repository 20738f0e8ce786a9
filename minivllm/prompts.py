"""The forms in which a user may give prompts, vLLM's among them, brought to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minivllm.sampling_params import SamplingParams, is_int
from minivllm.tokenizer import Tokenizer

Prompt = str | Sequence[int] | dict[str, Any]


def parse_prompt(prompt: Prompt, tokenizer: Tokenizer) -> tuple[str | None, list[int], str | None]:
    """Any form of a prompt -> (its text if known, token ids, cache salt).

    The forms: a text, a list of ids, or a dict with "prompt" or "prompt_token_ids" and perhaps
    "cache_salt". Raises ValueError for anything else.
    """
    if isinstance(prompt, str):
        prompt = {"prompt": prompt}
    elif isinstance(prompt, Sequence) and not isinstance(prompt, bytes):
        prompt = {"prompt_token_ids": prompt}
    if not isinstance(prompt, dict) or not {"prompt", "prompt_token_ids"} & set(prompt):
        raise ValueError(
            f"a prompt is a text, token ids or a dict with one of them, got {prompt!r}"
        )
    text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if token_ids is None:
        token_ids = tokenizer.encode(text)
    if not isinstance(token_ids, Sequence):
        raise ValueError(f"prompt_token_ids must be a list of token ids, got {token_ids!r}")
    return text, list(token_ids), prompt.get("cache_salt")


def as_prompt_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several -> a list. A list of integers is one prompt."""
    if isinstance(prompts, (str, bytes, dict)):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise ValueError(f"prompts must be a prompt or a list of prompts, got {prompts!r}")
    prompts = list(prompts)
    return [prompts] if prompts and all(is_int(token) for token in prompts) else prompts


def as_params_list(
    params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
) -> list[SamplingParams]:
    """One SamplingParams for each prompt. Raises ValueError when the list has another length."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    if not isinstance(params, Sequence):
        raise ValueError(
            f"sampling_params must be SamplingParams or a list of them, got {params!r}"
        )
    if len(params) != num_prompts:
        raise ValueError(f"{num_prompts} prompts, but {len(params)} SamplingParams")
    return list(params)
