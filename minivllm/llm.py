"""The face of the engine: text in, text out, under vLLM's names.

from minivllm import LLM, SamplingParams
outputs = LLM("smollm2").generate(["Once upon a time"], SamplingParams(max_tokens=32))
print(outputs[0].outputs[0].text)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from tqdm import tqdm

from minivllm.beam_search import BeamSearch, BeamSearchOutput, BeamSearchParams
from minivllm.config import SchedulerConfig
from minivllm.device import available_bytes, choose_device, choose_dtype
from minivllm.engine import Engine
from minivllm.executor import ModelExecutor
from minivllm.kv_budget import num_blocks_within
from minivllm.kv_cache import KVCache
from minivllm.model import LlamaModel
from minivllm.output_processor import OutputProcessor
from minivllm.outputs import RequestOutput
from minivllm.prompts import Prompt, as_params_list, as_prompt_list, parse_prompt
from minivllm.sampling_params import SamplingParams, is_int
from minivllm.scheduler import Scheduler
from minivllm.step_records import EngineOutput
from minivllm.tokenizer import Tokenizer
from minivllm.weights import load_weights, read_facts

Message = dict[str, str]


class LLM:
    """A model, its tokenizer and an engine.

    model: "smollm2", a GGUF file, a Hugging Face folder, or "tiny" (random weights). dtype: "auto"
    (float32 on a CPU, bfloat16 on a GPU) or its name. device: "auto" (CUDA where present) or a
    torch device. The KV cache has num_blocks blocks of block_size tokens, or as many as
    kv_cache_memory bytes pay for; num_host_blocks more in host memory serve preemption_mode="swap".
    max_model_len: tokens of one request, at most the model's context. enable_prefix_caching is on,
    as in vLLM: hashing costs a few microseconds a block, next to milliseconds for computing it.
    attention_backend: "torch", "cpp", "triton", or "auto" (device.py). The other options are
    SchedulerConfig's. Raises ValueError for whatever cannot work.
    """

    def __init__(
        self,
        model: str = "smollm2",
        *,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device = "auto",
        block_size: int = 16,
        num_blocks: int | None = None,
        kv_cache_memory: int | None = None,
        max_model_len: int | None = None,
        enable_prefix_caching: bool = True,
        seed: int = 0,
        attention_backend: str = "auto",
        **scheduler_options: Any,
    ) -> None:
        self.device = choose_device(device)
        dtype = choose_dtype(dtype, self.device)
        facts = read_facts(model)
        if not is_int(seed):
            raise ValueError(f"seed must be an integer, got {seed!r}")
        if num_blocks is not None and kv_cache_memory is not None:
            raise ValueError(
                f"num_blocks ({num_blocks}) or kv_cache_memory ({kv_cache_memory}), not both"
            )
        limits = SchedulerConfig(  # before the weights are loaded: a bad option fails at once
            num_blocks=1 if num_blocks is None else num_blocks,  # replaced below
            block_size=block_size,
            max_model_len=facts.context_length if max_model_len is None else max_model_len,
            enable_prefix_caching=enable_prefix_caching,
            **scheduler_options,
        )
        if limits.max_model_len > facts.context_length:
            raise ValueError(
                f"max_model_len is {max_model_len}; the model was made for {facts.context_length}"
            )
        self.tokenizer = Tokenizer.from_model(model)
        config, weights = load_weights(model, dtype, self.device, seed)
        self.model = LlamaModel(config, weights, dtype, self.device)
        sizes = (config.num_layers, block_size, config.num_kv_heads, config.head_dim)
        bytes_per_block = KVCache.bytes_per_block(*sizes, dtype)
        if num_blocks is not None:  # so that a pool beyond the free memory is refused, too
            kv_cache_memory = num_blocks * bytes_per_block
        num_blocks = num_blocks_within(
            bytes_per_block, kv_cache_memory, self.device, available_bytes(self.device)
        )
        limits = replace(limits, num_blocks=num_blocks)
        blocks = (num_blocks, block_size, limits.num_host_blocks)
        executor = ModelExecutor(self.model, *blocks, attention_backend)
        self.engine = Engine(Scheduler(limits), executor, facts.eos_token_ids, seed)
        self._processor = OutputProcessor(self.tokenizer)
        self._ids = count()

    # --- many at once ---------------------------------------------------------------------------

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete each prompt; the outputs stand in the order of the prompts.

        A prompt is a text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}. One
        SamplingParams serves all prompts, or there is one for each. Raises ValueError, before
        anything runs, when one of them cannot be served.
        """
        live = self._add_all(prompts, sampling_params)
        outputs = list(live.values())
        with tqdm(total=len(outputs), desc="prompts", disable=not use_tqdm) as bar:
            for output in self._drain(live):
                bar.update(output.finished)
        return outputs

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Answer one chat, [{"role": ..., "content": ...}, ...], or each of a list of chats."""
        if not isinstance(messages, Sequence):
            raise ValueError(f"messages must be a list, got {messages!r}")
        chats = [messages] if messages and isinstance(messages[0], dict) else messages
        return self.generate([self.chat_prompt(chat) for chat in chats], sampling_params, use_tqdm)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[RequestOutput]:
        """Yield a request's output each time it has grown: the same object every time.

        Leaving the loop early aborts what has not finished.
        """
        yield from self._drain(self._add_all(prompts, sampling_params))

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams
    ) -> list[BeamSearchOutput]:
        """The likeliest continuations of each prompt, the best first; all prompts run together.

        Raises ValueError when a search cannot be served, or fails.
        """
        searches: dict[str, BeamSearch] = {}
        try:
            for prompt in as_prompt_list(prompts):
                _, token_ids, salt = parse_prompt(prompt, self.tokenizer)
                request_id = self._new_id()
                search = BeamSearch(self.engine, request_id, token_ids, params, salt)
                searches[request_id] = search
            while any(search.is_running for search in searches.values()):
                results = self.engine.step()
                self._process([result for result in results if result.request_id not in searches])
                for result in results:
                    if result.request_id in searches:
                        searches[result.request_id].take(result)
        finally:
            for request_id in searches:
                self.engine.abort(request_id)
        return [self._read_beams(search) for search in searches.values()]

    def _read_beams(self, search: BeamSearch) -> BeamSearchOutput:
        if search.error is not None:
            raise ValueError(f"beam search {search.request_id}: {search.error}")
        for sequence in search.kept:
            sequence.text = self.tokenizer.decode(sequence.tokens)
        return BeamSearchOutput(search.kept)

    def chat_prompt(self, messages: Sequence[Message]) -> dict[str, Any]:
        """The prompt of a chat: its text by the model's chat template, and the token ids of it."""
        text = self.tokenizer.apply_chat_template(list(messages))
        token_ids = self.tokenizer.encode(text, add_special_tokens=False)
        return {"prompt": text, "prompt_token_ids": token_ids}

    def _add_all(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
    ) -> dict[str, RequestOutput]:
        prompts = as_prompt_list(prompts)
        params = as_params_list(sampling_params, len(prompts))
        live: dict[str, RequestOutput] = {}
        try:
            for prompt, wanted in zip(prompts, params, strict=True):
                output = self.add_request(prompt, wanted)
                live[output.request_id] = output
        except BaseException as error:
            self._abort_all(live)
            if isinstance(error, ValueError):
                raise ValueError(f"prompt {len(live)} of {len(prompts)}: {error}") from None
            raise
        return live

    def _drain(self, live: dict[str, RequestOutput]) -> Iterator[RequestOutput]:
        """Step until the requests in `live` have ended, whoever else may step the engine too."""
        try:
            while live:
                for output in self.step():
                    if output.request_id in live and not output.finished:
                        yield output
                for output in [output for output in live.values() if output.finished]:
                    del live[output.request_id]
                    yield output
        finally:
            self._abort_all(live)

    def _abort_all(self, live: dict[str, RequestOutput]) -> None:
        for request_id in live:
            self.abort(request_id)

    # --- one by one -----------------------------------------------------------------------------

    def add_request(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        request_id: str | None = None,
        priority: int = 0,
    ) -> RequestOutput:
        """Put one request in line; returns its output, which grows as `step` is called.

        Raises ValueError for a request that cannot be served; all others go on.
        """
        if request_id is None:
            request_id = self._new_id()
        params = SamplingParams() if params is None else params
        text, token_ids, cache_salt = parse_prompt(prompt, self.tokenizer)
        self.engine.add_request(request_id, token_ids, params, priority, cache_salt)
        return self._processor.add_request(request_id, text, token_ids, params)

    def _new_id(self) -> str:
        return next(i for i in map(str, self._ids) if i not in self.engine.scheduler.requests)

    def step(self) -> list[RequestOutput]:
        """Run one step of the engine; the outputs that grew in it."""
        return self._process(self.engine.step())

    def abort(self, request_id: str) -> list[RequestOutput]:
        """End a request now; its last output, or nothing for an id that is unknown or has ended."""
        return self._process(self.engine.abort(request_id))

    @property
    def has_unfinished_requests(self) -> bool:
        return self.engine.has_unfinished_requests

    def _process(self, results: list[EngineOutput]) -> list[RequestOutput]:
        outputs: dict[str, RequestOutput] = {}
        stops: list[tuple[str, int, str]] = []
        for result in results:
            output, stop_string = self._processor.process(result)
            outputs[output.request_id] = output
            if stop_string is not None:
                stops.append((result.request_id, result.sample_index, stop_string))
        for stop in stops:  # only now, for the last one to end closes its request's output
            self._processor.process(self.engine.stop(*stop))
        return list(outputs.values())
