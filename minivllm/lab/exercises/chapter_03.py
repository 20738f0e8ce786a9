"""Exercises of chapter 3: fragmentation."""

from __future__ import annotations

from typing import Any

from minivllm.baselines.contiguous import next_power_of_two
from minivllm.config import SchedulerConfig
from minivllm.lab.exam import Exam
from minivllm.lab.exercise import Exercise, Mistake, Question
from minivllm.lab.trial import jobs, trial

# ---- 3.2 ----


def largest_without_b() -> int:
    """16 slots in four pieces of 4: the first three have come back, the last is taken."""
    return merged(4, 4, [(0, 4), (8, 4)])[1]


# ---- 3.3 ----


def power_of_two_from(number):
    power = 1
    while power < number:
        power *= 2
    return power


# ---- 3.4 ----


def pow2_piece(prompt, output, max_len):
    asked = min(prompt + next_power_of_two(output) - 1, max_len)
    return next_power_of_two(asked)


# ---- 3.5 ----


def merged(start, size, free):
    while (start ^ size, size) in free:
        start, size = min(start, start ^ size), 2 * size
    return start, size


def merged_with_the_right_only(start: int, size: int, free: list) -> tuple[int, int]:
    while (start + size, size) in free:
        size *= 2
    return start, size


def merged_with_any_neighbour(start: int, size: int, free: list) -> tuple[int, int]:
    grown = True
    while grown:
        grown = False
        for other, width in free:
            if width == size and abs(other - start) == size:
                start, size, grown = min(start, other), 2 * size, True
    return start, size


# ---- 3.6 ----


def four_parts(num_slots, holdings):
    tokens = sum(stored for held, stored, needed in holdings)
    reservation = sum(min(needed, held) - stored for held, stored, needed in holdings)
    internal = sum(held - min(needed, held) for held, stored, needed in holdings)
    return [tokens, reservation, internal, num_slots - tokens - reservation - internal]


# ---- 3.7 ----


def careful_reserve(request):
    return request.num_prompt_tokens + request.max_tokens - 1


def examine_reserve(exam: Exam, reserve: Any) -> None:
    config = SchedulerConfig(
        num_blocks=8, block_size=4, max_num_seqs=8, watermark_blocks=0, max_model_len=32
    )
    work = jobs([4, 6, 3, 2, 5, 4], outputs=[5, 7, 6, 3, 8, 9])
    run, best = trial(work, config, reserve=reserve), trial(work, config, reserve=careful_reserve)
    num_thrown_out = run.engine.scheduler.stats.num_preemptions
    exam.equal(num_thrown_out, 0, "the number of requests thrown out")
    exam.equal(run.num_steps, best.num_steps, "the number of steps of six requests in 8 blocks")


EXERCISES = [
    Question(
        "3.1",
        answer=lambda: 30 + next_power_of_two(40) - 1,
        working="30 for the prompt, 64 for the output of 40, and the last token is never stored",
        mistakes=[
            Mistake(wrong=94, says="the last token of the output is never run, so not stored"),
            Mistake(wrong=69, says="that is Oracle: Pow2 knows the output up to a factor of 2"),
            Mistake(wrong=63, says="you forget the prompt, which is stored as well"),
            Mistake(wrong=128, says="the rule rounds up the output only, not the whole text"),
            Mistake(wrong=2048, says="that is Max, which reserves the longest text allowed"),
        ],
    ),
    Question(
        "3.2",
        answer=largest_without_b,
        working="A's and B's pieces are buddies (0 and 4), C's buddy at 12 is D's and taken",
        mistakes=[
            Mistake(wrong=12, says="12 slots lie side by side, but pieces are powers of two"),
            Mistake(wrong=4, says="B's buddy is A's piece, which is free: they merge"),
            Mistake(wrong=16, says="D still holds the last four slots"),
        ],
    ),
    Exercise(
        "3.3",
        power_of_two_from,
        cases=[(1,), (2,), (3,), (25,), (32,), (33,), (1024,)],
        mistakes=[
            Mistake("power < number", "power <= number",
                    says="you give the next one even where the number is a power of two itself"),
            Mistake("return power", "return power if power == number else power // 2",
                    says="you round down: the piece must hold all that is asked for"),
            Mistake("power = 1", "power = 2",
                    says="you begin with 2, but 1 is a power of two, too"),
            Mistake("power *= 2", "power += 2",
                    says="you add 2 where you should double: 6 is even, but no power of two"),
        ],
    ),
    Exercise(
        "3.4",
        pow2_piece,
        cases=[(10, 25, 2048), (1, 1, 16), (3, 6, 64), (4, 9, 64), (100, 200, 256), (9, 8, 64),
               (5, 4, 7)],
        mistakes=[
            Mistake("return next_power_of_two(asked)", "return asked",
                    says="that is what is asked for; the allocator rounds it up once more"),
            Mistake("next_power_of_two(output) - 1", "output - 1",
                    says="you take the true output, but the rule only guesses it"),
            Mistake("min(prompt + next_power_of_two(output) - 1, max_len)",
                    "prompt + next_power_of_two(output) - 1",
                    says="you ask for more than the longest text allowed"),
            Mistake("next_power_of_two(output) - 1", "next_power_of_two(output)",
                    says="you reserve for the last token too, but it is never stored"),
        ],
    ),
    Exercise(
        "3.5",
        merged,
        cases=[
            (4, 4, [(0, 4), (8, 4)]), (8, 4, [(0, 8), (12, 4)]), (0, 4, []), (4, 4, [(8, 4)]),
            (0, 2, [(2, 2), (4, 4)]), (12, 4, [(8, 4), (0, 4)]), (4, 2, [(2, 2), (6, 1)]),
        ],
        mistakes=[
            Mistake("while", "if",
                    says="you merge once, but the larger piece may have a free buddy again"),
            Mistake(wrong=merged_with_the_right_only,
                    says="you look to the right only, but a buddy may lie to the left"),
            Mistake(wrong=merged_with_any_neighbour,
                    says="you merge any neighbours, but only the halves of one piece are buddies"),
            Mistake("min(start, start ^ size)", "start",
                    says="the merged piece begins where the left one of the two does"),
        ],
    ),
    Exercise(
        "3.6",
        four_parts,
        cases=[
            (64, [(64, 15, 34)]), (64, [(34, 15, 34)]), (100, [(41, 15, 34), (16, 4, 5)]),
            (64, [(16, 15, 34), (8, 8, 20)]), (32, []),
        ],
        mistakes=[
            Mistake("num_slots - tokens - reservation - internal",
                    "num_slots - tokens",
                    says="external is what nobody holds: take away what is held empty, too"),
            Mistake("held - min(needed, held) for", "held - stored for",
                    says="you count what will be filled later as internal, too"),
            Mistake("min(needed, held) - stored for", "needed - stored for",
                    says="a request may need more than it holds: that is not reserved yet"),
            Mistake("min(needed, held) - stored for", "held - stored for",
                    says="you count slots that are never filled as reservation"),
        ],
    ),
    Exercise(
        "3.7",
        careful_reserve,
        examine=examine_reserve,
        mistakes=[
            Mistake("request.num_prompt_tokens + request.max_tokens - 1", "request.num_tokens",
                    says="you reserve what is there now: memory runs out when answers grow"),
            Mistake("request.num_prompt_tokens + request.max_tokens - 1",
                    "request.num_prompt_tokens + request.max_tokens",
                    says="you reserve for the last token too, and sometimes that is a whole block"),
            Mistake("request.num_prompt_tokens + request.max_tokens - 1", "32",
                    says="you reserve for the longest text allowed, so others wait in vain"),
            Mistake("request.num_prompt_tokens + request.max_tokens - 1", "request.max_tokens",
                    says="you forget the prompt, whose keys and values are stored, too"),
        ],
    ),
]  # fmt: skip
