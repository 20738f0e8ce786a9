"""Token ids that the engine puts out -> the text the user reads (vLLM: OutputProcessor).

It keeps one detokenizer and one watch for stop strings per sample. Invariant: the text of a
finished sample is the decoding of all its tokens up to the stop string or stop token, and no piece
of it, once given out, is ever taken back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from minivllm.detokenizer import IncrementalDetokenizer
from minivllm.outputs import CompletionOutput, Logprob, RequestOutput
from minivllm.sampling_params import SamplingParams
from minivllm.step_records import EngineOutput
from minivllm.stop_strings import StopStrings
from minivllm.tokenizer import Tokenizer


@dataclass
class SampleText:
    """The text of one sample as it grows."""

    detokenizer: IncrementalDetokenizer
    stops: StopStrings
    completion: CompletionOutput


@dataclass
class RequestState:
    """What is known of one request while it lives."""

    output: RequestOutput
    params: SamplingParams
    samples: dict[int, SampleText] = field(default_factory=dict)


class OutputProcessor:
    """Turns EngineOutputs into RequestOutputs; knows the live requests by their id."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.states: dict[str, RequestState] = {}

    def add_request(
        self, request_id: str, prompt: str | None, token_ids: list[int], params: SamplingParams
    ) -> RequestOutput:
        """Start a request's output, which grows as `process` is called."""
        output = RequestOutput(request_id, prompt, token_ids, [], finished=False)
        self.states[request_id] = RequestState(output, params)
        return output

    def process(self, result: EngineOutput) -> tuple[RequestOutput, str | None]:
        """Take in one engine output; returns the request's output as it stands, and the stop string
        that has just ended the sample (the engine does not know of it yet), or None.
        """
        state = self.states[result.request_id]
        sample = self._sample(state, result.sample_index)
        sample.completion.token_ids += result.new_token_ids
        self._add_logprobs(sample.completion, state.params, result)
        self._add_text(sample, state.params, result)
        state.output.num_cached_tokens = result.num_cached_tokens
        if result.request_ended:
            state.output.finished = True
            del self.states[result.request_id]
        return state.output, sample.stops.matched if result.finish_reason is None else None

    def _sample(self, state: RequestState, index: int) -> SampleText:
        if index not in state.samples:
            completion = CompletionOutput(index, "", [])
            detokenizer = IncrementalDetokenizer(self.tokenizer)
            state.samples[index] = SampleText(
                detokenizer, StopStrings(state.params.stop), completion
            )
            state.output.outputs.append(completion)
            state.output.outputs.sort(key=lambda completion: completion.index)
        return state.samples[index]

    def _add_text(self, sample: SampleText, params: SamplingParams, result: EngineOutput) -> None:
        completion = sample.completion
        ends_text = result.finish_reason == "stop"  # by its last token, which shows nothing itself
        text = sample.detokenizer.add(result.new_token_ids[: -1 if ends_text else None])
        if result.finish_reason is not None:
            text += sample.detokenizer.finish()
        if len(completion.token_ids) < params.min_tokens:
            completion.text += text  # too early for a stop string to count
        else:
            completion.text += sample.stops.add(text)
        if result.finish_reason is None:
            return
        completion.finish_reason, completion.stop_reason = result.finish_reason, result.stop_reason
        if sample.stops.matched is not None:
            completion.finish_reason, completion.stop_reason = "stop", sample.stops.matched
        else:
            completion.text += sample.stops.finish()

    def _add_logprobs(
        self, completion: CompletionOutput, params: SamplingParams, result: EngineOutput
    ) -> None:
        if result.logprobs is None:
            return
        completion.logprobs = completion.logprobs or []
        for token_id, logprob_of in zip(result.new_token_ids, result.logprobs, strict=True):
            likeliest = sorted(logprob_of.values(), reverse=True)[: params.logprobs]
            completion.logprobs.append(
                {
                    other: Logprob(value, rank_in(likeliest, value), self.tokenizer.decode([other]))
                    for other, value in logprob_of.items()
                }
            )
            so_far = completion.cumulative_logprob or 0.0
            completion.cumulative_logprob = so_far + logprob_of[token_id]


def rank_in(likeliest: list[float], logprob: float) -> int | None:
    """1 for the first of `likeliest`; None for a token that was drawn from beyond them.

    >>> rank_in([-0.5, -1.5], -1.5), rank_in([-0.5, -1.5], -4.0)
    (2, None)
    """
    return likeliest.index(logprob) + 1 if logprob in likeliest else None
