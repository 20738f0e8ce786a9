"""Continuous batching: in each step, give each request some of the tokens it lacks, under one
budget.

There is no prefill phase and no decode phase. `num_computed_tokens` chases `num_tokens`; a request
that lacks 300 tokens is being prefilled, one that lacks 1 decodes, and both go into the same step.
Running requests come first, then waiting ones enter while

    num_free_blocks - watermark >= initial_need(request)

and whoever ends gives its blocks back in the same update. Out of blocks, the youngest running
request is preempted. Progress is guaranteed, since `add_request` refuses what could not run alone,
and the first in line can always have all the others' blocks. Waiting requests are not skipped: when
the first in line does not fit, nobody behind it enters. Left out: scheduling a step while the one
before it still runs (vLLM: async scheduling).
"""

from __future__ import annotations

from bisect import insort

from minivllm import admission
from minivllm.allocator import BlockPool
from minivllm.batching import FormBatch, mix
from minivllm.config import SchedulerConfig
from minivllm.integrity import check_integrity
from minivllm.kv_cache_manager import KVCacheManager
from minivllm.policy import POLICIES
from minivllm.request import Request, RequestGroup, RequestStatus
from minivllm.request_queue import RequestQueue
from minivllm.stats import SchedulerStats
from minivllm.step_records import EngineOutput, Event, ModelOutput, SchedulerOutput, counted


class Scheduler:
    """Queues `waiting` and `running`, both in the policy's order: the first in line enters next,
    the last of `running` is preempted next.

    The systems of baselines/ differ in `reserve`, how many tokens' slots a request must get when it
    enters; `form_batch`, who shares a step; `pool`, which blocks a request gets (by default any).
    """

    def __init__(
        self, config: SchedulerConfig, reserve: admission.Reserve = admission.known_tokens,
        form_batch: FormBatch = mix, pool: BlockPool | None = None,
    ) -> None:  # fmt: skip
        self.config = config
        self.kv = KVCacheManager(config, pool)
        self.reserve = reserve
        self.form_batch = form_batch
        self.requests: dict[str, RequestGroup] = {}  # everybody who has not ended
        self.running: list[Request] = []
        self.waiting = RequestQueue(POLICIES[config.policy])
        self.num_arrivals = 0
        self.step = 0
        self.stats = SchedulerStats()
        self.events: list[Event] = []  # since the last update; a step's output takes them along

    # --- the door -------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Put a request in line. Raises ValueError when it could never run, or its id is in use."""
        admission.check_id_is_free(request, self.requests)
        admission.limit_max_tokens(request, self.config)
        admission.check_can_run_alone(request, self.config, self.reserve)
        request.arrival = self.num_arrivals
        self.num_arrivals += 1
        self.requests[request.request_id] = RequestGroup([request])
        self.waiting.push(request)
        prompt = counted(request.num_prompt_tokens, "prompt token")
        self._log("add", request.name, f"joins the line: {prompt}")

    # --- schedule -------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Choose what runs in this step. An empty output is a legal result."""
        self.step += 1
        output = SchedulerOutput(self.step, events=self.events)
        self.form_batch(self, output)
        if not output.requests and self.running and self.waiting:
            # Only beams that wait for their token run: make room for those they wait for.
            self._preempt_request(self.running[-1], "so that the first in line can enter")
        self._collect_block_moves(output)
        return output

    def _collect_block_moves(self, output: SchedulerOutput) -> None:
        output.block_ops = self.kv.take_block_ops()
        for src, dst in [(op.src, op.dst) for op in output.block_ops if op.kind == "copy"]:
            self.stats.num_copied_blocks += 1
            self._log("copy", f"block {src}", f"is shared: copied to {dst} to be written")
        for block_id in self.kv.take_evicted():
            self._log("evict", f"block {block_id}", "is taken for new tokens: its prefix is lost")

    def schedule_running(self, output: SchedulerOutput) -> int | None:
        """Give running requests their tokens; preempt from the end when blocks run out.

        Returns the tokens that are left for newcomers; None when somebody has been preempted.
        """
        budget, max_chunk = self.config.max_num_batched_tokens, self.config.max_chunk
        num_preemptions = self.stats.num_preemptions
        for request in self.running:  # only its end can be preempted, so nobody is passed over
            if budget == 0:
                break
            num_new = len(request.token_ids) - request.num_computed_tokens
            if num_new > 1:
                num_new = self._cut_chunk(request, num_new, min(max_chunk, budget))
            while num_new and self.kv.allocate_slots(request, num_new) is None:
                if self._preempt_last(request) is request:
                    num_new = 0
            if num_new:
                output.add(request, num_new)
                budget -= num_new
        return budget if self.stats.num_preemptions == num_preemptions else None

    def _preempt_last(self, request: Request) -> Request:
        """Preempt the last of those who run, since `request` lacks a block; it may be the last."""
        last, why = self.running[-1], f"so that {request.name} gets a block"
        return self._preempt_request(last, "for want of a block" if last is request else why)

    def schedule_waiting(self, output: SchedulerOutput, budget: int) -> None:
        """Let waiting requests enter, in their order, until one does not fit."""
        seats = self.config.max_num_seqs - sum([request.num_seats for request in self.running])
        while (request := self.waiting.peek()) is not None:
            if reason := admission.no_seat(request, seats):
                break  # before the search for its prefix, which may be long
            num_reserved = self.reserve(request)
            need = self.kv.initial_need(request, num_reserved)
            num_cached = len(need.cached_block_ids) * self.config.block_size
            # Computed tokens of one who waits: those swapped out; it looks for no prefix then.
            num_lacking = request.num_tokens - (num_cached or request.num_computed_tokens)
            if reason := admission.no_room(self, request, need.num_blocks, num_lacking, budget):
                break
            self.kv.allocate_initial(self.waiting.pop(), num_reserved, need)
            self._enter(request, num_cached, need.num_blocks)
            seats -= request.num_seats
            num_new = self._cut_chunk(request, num_lacking, min(self.config.max_chunk, budget))
            if num_new:
                output.add(request, num_new)
                budget -= num_new
        if request is not None:
            self._log("wait", request.name, f"waits: {reason}")

    def _enter(self, request: Request, num_cached: int, num_blocks: int) -> None:
        resumes = request.status is RequestStatus.PREEMPTED
        if not resumes:  # what a recompute finds again is no hit of the user's prompt
            request.num_cached_tokens = num_cached
            self.stats.count_admission(request.num_prompt_tokens, num_cached)
        request.status = RequestStatus.RUNNING
        insort(self.running, request, key=self.waiting.order)
        kind, verb = ("resume", "resumes") if resumes else ("admit", "enters")
        hit = f", {counted(num_cached, 'token')} found in the cache" if num_cached else ""
        self._log(kind, request.name, f"{verb} with {counted(num_blocks, 'block')}{hit}")

    def _cut_chunk(self, request: Request, num_lacking: int, most: int) -> int:
        if num_lacking > most:
            self._log("chunk", request.name, f"runs {most} of the {num_lacking} tokens it lacks")
        return min(num_lacking, most)

    # --- preempt, finish ------------------------------------------------------------------------

    def _preempt_request(
        self, request: Request, why: str = "on demand", keeps_kv: bool = True
    ) -> Request:
        """Take a running request's blocks; it resumes before anybody who has not run yet.

        keeps_kv: whether its KV may be kept in host memory; else it is computed again.
        """
        self.running.remove(request)
        num_computed = request.num_computed_tokens
        num_swapped = self.kv.preempt(request) if keeps_kv else self.kv.lose(request)
        self.stats.count_preemption(num_swapped)
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self.waiting.push(request)
        again = f"{counted(num_computed, 'token')} to compute again"
        cost = f"{counted(num_swapped, 'block')} moved to host memory" if num_swapped else again
        self._log("preempt", request.name, f"is preempted {why}: {cost}")
        return request

    def lose_all(self) -> None:
        """Have all KV computed again: nobody knows which of its moves and writes a step that broke
        off has done.
        """
        for request in [*self.running]:
            self._preempt_request(request, "since the step broke off", keeps_kv=False)
        for request in self.waiting:
            self.kv.lose(request)

    def finish(
        self, request: Request, reason: str, stop_reason: int | str | None = None
    ) -> EngineOutput:
        """End one sample now, its blocks free for the next schedule()."""
        queue = self.running if request.status is RequestStatus.RUNNING else self.waiting
        queue.remove(request)
        request.finish_reason, request.stop_reason = reason, stop_reason
        return EngineOutput(request, [], request_ended=self._release(request))

    # --- update ---------------------------------------------------------------------------------

    def update_from_output(
        self, output: SchedulerOutput, model_output: ModelOutput
    ) -> list[EngineOutput]:
        """Take in what the step computed; blocks of whoever ends are free before this returns."""
        results: list[EngineOutput] = []
        sampled, logprobs = model_output.sampled_token_ids, model_output.logprobs
        num_finished, running = self.stats.num_finished, RequestStatus.RUNNING
        chunks = zip(output.requests, output.num_scheduled_tokens, sampled, strict=True)
        for index, (request, num_new, token_ids) in enumerate(chunks):
            if request.status is not running:  # aborted or preempted since schedule()
                continue
            if index in model_output.errors:
                results.append(self.finish(request, "error", model_output.errors[index]))
                continue
            if request.num_computed_tokens < request.num_lost_tokens:
                self.stats.count_recompute(request, num_new)
            request.num_computed_tokens += num_new
            self.kv.publish_full_blocks(request)
            if len(token_ids) == 1:  # as good as always
                results.append(self._append_token(request, token_ids, logprobs.get(index)))
            elif token_ids:
                results += self.append_tokens(request, token_ids, logprobs.get(index))
            elif index in logprobs:  # a beam: its token is chosen outside, and it waits for that
                results.append(EngineOutput(request, [], logprobs[index]))
        if self.stats.num_finished > num_finished:
            self.running = [request for request in self.running if not request.is_finished]
        self.events = []
        return results

    def append_tokens(
        self, request: Request, token_ids: list[int], logprobs: list[dict[int, float]] | None = None
    ) -> list[EngineOutput]:
        """One token to the request, and each further one to a sample forked from it."""
        samples = [request] + [self._fork(request) for _ in token_ids[1:]]
        of_each = [[its_own] for its_own in logprobs] if logprobs else [None] * len(samples)
        return list(map(self._append_token, samples, [[token] for token in token_ids], of_each))

    def _append_token(
        self, sample: Request, new_token_ids: list[int], logprobs: list[dict[int, float]] | None
    ) -> EngineOutput:
        sample.append_token(new_token_ids[0])
        ended = sample.finish_reason is not None and self._release(sample)
        return EngineOutput(sample, new_token_ids, logprobs, ended)

    def _fork(self, parent: Request) -> Request:
        """A new sample that shares all of the parent's blocks; without any, it computes its own."""
        child = self.requests[parent.request_id].fork(parent)
        self.kv.fork(parent, child)
        if parent.status is RequestStatus.RUNNING:
            insort(self.running, child, key=self.waiting.order)
        else:
            self.waiting.push(child)
        shared = counted(child.block_table.num_blocks, "block")
        self._log("fork", child.name, f"is forked from {parent.name}, sharing {shared}")
        return child

    def _release(self, request: Request) -> bool:
        """Free the blocks of a sample that ends; the caller takes it out of its queue.

        Returns True when this was the last sample of the user's request.
        """
        num_blocks = counted(request.block_table.num_blocks, "block")
        self.kv.free(request)
        request.status = RequestStatus.FINISHED
        self.stats.num_finished += 1
        group = self.requests[request.request_id]
        group.samples.remove(request)
        if not group.samples:
            del self.requests[request.request_id]
        kind = "abort" if request.finish_reason == "abort" else "finish"
        numbers = f"{counted(request.num_output_tokens, 'token')}, {num_blocks} back"
        self._log(kind, request.name, f"ends ({request.finish_reason}): {numbers}")
        return not group.samples

    def _log(self, kind: str, name: str, reason: str) -> None:
        self.events.append(Event(self.step, kind, name, reason))

    def check_integrity(self) -> None:
        """Raise RuntimeError unless every rule of integrity.py holds. O(pool): for tests, views."""
        check_integrity(self)
