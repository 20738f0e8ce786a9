"""The rules of the door: who is refused, how much the others reserve, why the first must wait."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING

from minivllm.config import SchedulerConfig
from minivllm.page_table import num_blocks_for
from minivllm.request import Request
from minivllm.step_records import counted

if TYPE_CHECKING:
    from minivllm.scheduler import Scheduler

Reserve = Callable[[Request], int]


def known_tokens(request: Request) -> int:
    """Reserve slots for what is known on entering: prompt and output so far (vLLM's choice)."""
    return request.num_tokens


def check_id_is_free(request: Request, requests: Container[str]) -> None:
    """Raise ValueError when one of the live requests bears the id of this one."""
    if request.request_id in requests:
        raise ValueError(
            f"request {request.request_id!r}: this id is in use by a request that has not ended"
        )


def limit_max_tokens(request: Request, config: SchedulerConfig) -> None:
    """Lower the request's max_tokens to what max_model_len leaves; ValueError if that is none."""
    length = request.num_prompt_tokens
    room = config.max_model_len - length
    if room < 1:
        raise ValueError(
            f"request {request.request_id!r}: the prompt has {length} tokens, and max_model_len is "
            f"{config.max_model_len}: no room for an output token"
        )
    request.max_tokens = min(request.max_tokens or room, room)


def check_can_run_alone(request: Request, config: SchedulerConfig, reserve: Reserve) -> None:
    """Raise ValueError when the request would not fit even with the whole engine to itself.

    That guarantees progress: the first in line can always be given the blocks of all the others.
    """
    where, length = f"request {request.request_id!r}", request.num_prompt_tokens
    if request.num_seats > config.max_num_seqs:
        raise ValueError(
            f"{where}: n = {request.num_seats} samples, max_num_seqs is {config.max_num_seqs}"
        )
    num_tokens = max(request.max_kv_tokens, reserve(request))
    num_blocks = num_blocks_for(num_tokens, config.block_size)
    if request.is_beam:  # beams wait for one another, so there must be room for all at once
        num_blocks = num_blocks * request.num_seats + config.watermark_blocks
    if num_blocks > config.num_blocks:
        raise ValueError(
            f"{where}: {length} prompt tokens and up to {request.max_tokens} more need {num_blocks}"
            f" blocks of {config.block_size}; the pool has {config.num_blocks}"
        )


def no_seat(request: Request, num_seats: int) -> str | None:
    """Why `num_seats` free places of max_num_seqs are too few for a request; None if not."""
    if request.num_seats > num_seats:
        return f"needs {counted(request.num_seats, 'seat')}, {num_seats} free"
    return None


def no_room(
    scheduler: Scheduler, request: Request, num_blocks: int, num_lacking: int, budget: int
) -> str | None:
    """Why a step has no room for a request, in numbers; None when it has.

    The request takes `num_blocks` blocks off the free list, and lacks `num_lacking` tokens; the
    step's budget has `budget` left. The watermark is for those who run: without any there is none.
    """
    config, num_free = scheduler.config, scheduler.kv.pool.num_available_blocks
    watermark = config.watermark_blocks if scheduler.running else 0
    if num_free - watermark < num_blocks:
        stay_free = f", watermark {watermark}" if watermark else ""
        return f"needs {counted(num_blocks, 'block')}, {num_free} free{stay_free}"
    if budget == 0 or (num_lacking > budget and not config.enable_chunked_prefill):
        return f"{counted(num_lacking, 'token')} to run, {budget} left of the budget"
    return None


def check_token_ids(request: Request, vocab_size: int) -> None:
    """Raise ValueError when a token id, of the prompt or to stop at, is not in the vocabulary, or
    when all of the vocabulary are stop tokens, so that nothing can be drawn before min_tokens.
    """
    token_ids = [*request.token_ids, *request.params.stop_token_ids]
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < vocab_size:
            raise ValueError(
                f"request {request.request_id!r}: token id {token_id} is outside the vocabulary of "
                f"{vocab_size}"
            )
    if request.suppressed_token_ids and len(request.stop_token_ids) >= vocab_size:
        raise ValueError(
            f"request {request.request_id!r}: all {vocab_size} tokens are stop tokens, and "
            f"min_tokens is {request.params.min_tokens}"
        )
