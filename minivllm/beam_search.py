"""Beam search: keep the `beam_width` likeliest texts, and let them share their KV blocks.

Each beam is a sample of one request. In each round every beam offers its likeliest next tokens; the
best of all offers go on. A beam with two survivors is forked, sharing all blocks until one of them
writes into a shared one (copy-on-write); a beam with none is dropped, its blocks free at once.

    round 1    the        round 2    the cat  -1.2      "the" has two survivors: it is forked
               a                     the dog  -1.5
                                     a cat    -2.1      "a" has none: it is dropped

The definition is Hugging Face's with early_stopping=False: scores are sums of log probabilities
over length ** length_penalty; a text that ends counts when it ranks among the first `beam_width`;
the search ends when no running beam scores better than the worst text kept. vLLM's differs:
it counts every ended text, leaves the end token out of the length, and always runs to max_tokens. A
beam that has offered waits for the others, even through a preemption (the engine promises that all
beams of a group fit into the pool together).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minivllm.engine import Engine
from minivllm.request import Request
from minivllm.sampling_params import SamplingParams, is_int, is_number
from minivllm.step_records import EngineOutput


@dataclass
class BeamSearchParams:
    """vLLM's fields. Raises ValueError for a value out of range.

    temperature: only 0 is taken, since a search over sums of log probabilities draws nothing.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name in ("beam_width", "max_tokens"):
            value = getattr(self, name)
            if not is_int(value) or value < 1:
                raise ValueError(f"{name} must be an integer >= 1, got {value!r}")
        if self.temperature != 0:
            raise ValueError(f"temperature must be 0 in a beam search, got {self.temperature!r}")
        if not is_number(self.length_penalty) or not math.isfinite(self.length_penalty):
            raise ValueError(f"length_penalty must be a finite number, got {self.length_penalty!r}")


@dataclass
class BeamSearchSequence:
    """One text that the search kept: all its tokens, the prompt's first.

    cum_logprob: the log probabilities of its output tokens, summed. score: what it was ranked by.
    """

    tokens: list[int]
    cum_logprob: float
    score: float
    finish_reason: str
    text: str | None = None


@dataclass
class BeamSearchOutput:
    """The kept texts of one prompt, the best first."""

    sequences: list[BeamSearchSequence]


class Offer(NamedTuple):
    """A token that a beam could go on with, and the sum of log probabilities up to it."""

    cum_logprob: float
    sample_index: int
    token_id: int


class BeamSearch:
    """One prompt's search over the beams of one request in the engine."""

    def __init__(
        self,
        engine: Engine,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: BeamSearchParams,
        cache_salt: str | None = None,
    ) -> None:
        self.engine, self.request_id, self.params = engine, request_id, params
        self.eos_token_ids = () if params.ignore_eos else engine.eos_token_ids
        # So many that at least beam_width go on, even if each beam offers all of the end tokens.
        self.num_offers = params.beam_width * (1 + len(self.eos_token_ids))
        wanted = SamplingParams(
            n=params.beam_width, temperature=0, ignore_eos=True, max_tokens=params.max_tokens,
            logprobs=min(self.num_offers, engine.executor.vocab_size),
        )  # fmt: skip
        engine.add_request(
            request_id, prompt_token_ids, wanted, cache_salt=cache_salt, is_beam=True
        )
        self.cum_logprobs = {0: 0.0}  # of the living beams, by sample index
        self.offers: dict[int, dict[int, float]] = {}
        self.kept: list[BeamSearchSequence] = []
        self.error: str | None = None

    @property
    def is_running(self) -> bool:
        return bool(self.cum_logprobs)

    def take(self, output: EngineOutput) -> None:
        """Take in what a step brought for one beam; once every beam has offered, choose."""
        if output.finish_reason is not None:
            self.error = f"{output.finish_reason}: {output.stop_reason}"
            self.engine.abort(self.request_id)
            self.cum_logprobs.clear()
            return
        beam = self._beams().get(output.sample_index)
        if beam is None or beam.num_computed_tokens < beam.num_tokens:
            return  # an offer made again after a preemption, too late: the choice has been made
        self.offers[output.sample_index] = output.logprobs[0]
        if set(self.offers) == set(self.cum_logprobs):
            self._choose()
            self.offers = {}

    def _beams(self) -> dict[int, Request]:
        group = self.engine.scheduler.requests.get(self.request_id)
        return {request.sample_index: request for request in group.samples} if group else {}

    def _choose(self) -> None:
        beams = self._beams()
        length = 1 + next(iter(beams.values())).num_output_tokens
        is_last = length == next(iter(beams.values())).max_tokens
        going_on: list[Offer] = []
        for rank, offer in enumerate(self._ranked_offers()):
            ends = is_last or offer.token_id in self.eos_token_ids
            if not ends:
                going_on.append(offer)
            elif rank < self.params.beam_width:
                self._keep(beams[offer.sample_index], offer, length)
        going_on = going_on[: self.params.beam_width]
        if not self._can_improve(going_on, length):
            going_on = []
        self._continue(beams, going_on)

    def _ranked_offers(self) -> list[Offer]:
        offers = [
            Offer(self.cum_logprobs[sample_index] + logprob, sample_index, token_id)
            for sample_index, logprobs in self.offers.items()
            for token_id, logprob in logprobs.items()
        ]
        offers.sort(key=lambda offer: (-offer.cum_logprob, offer.sample_index, offer.token_id))
        return offers[: self.num_offers]

    def _keep(self, beam: Request, offer: Offer, length: int) -> None:
        """Put an ended text among the best; the worst of too many goes."""
        reason = "stop" if offer.token_id in self.eos_token_ids else "length"
        score = offer.cum_logprob / length**self.params.length_penalty
        tokens = [*beam.token_ids, offer.token_id]
        self.kept.append(BeamSearchSequence(tokens, offer.cum_logprob, score, reason))
        self.kept.sort(key=lambda sequence: -sequence.score)
        del self.kept[self.params.beam_width :]

    def _can_improve(self, going_on: list[Offer], length: int) -> bool:
        """Whether the best running beam, at its length now, would beat the worst text kept."""
        if not going_on or len(self.kept) < self.params.beam_width:
            return bool(going_on)
        best = going_on[0].cum_logprob / length**self.params.length_penalty
        return best > self.kept[-1].score

    def _continue(self, beams: dict[int, Request], going_on: list[Offer]) -> None:
        """Drop the beams without an offer left, then lengthen and fork the others.

        The survivors keep all of the search's seats: whom the next round forks must find a place.
        """
        scheduler = self.engine.scheduler
        chosen = {index: [o for o in going_on if o.sample_index == index] for index in beams}
        self.cum_logprobs = {}
        num_spare = self.params.beam_width - len(going_on)
        for index, offers in chosen.items():
            if not offers:
                scheduler.finish(beams[index], "dropped" if going_on else "stop")
            else:
                beams[index].num_seats = len(offers) + num_spare
                num_spare = 0
        for index, offers in chosen.items():
            if offers:
                samples = scheduler.append_tokens(beams[index], [o.token_id for o in offers])
                for sample, offer in zip(samples, offers, strict=True):
                    self.cum_logprobs[sample.sample_index] = offer.cum_logprob
