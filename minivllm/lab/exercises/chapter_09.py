"""Exercises of chapter 9: memory pressure."""

from __future__ import annotations

from minivllm.config import SchedulerConfig
from minivllm.lab.clock import A100_40GB, OPT_13B, Clock
from minivllm.lab.exercise import Exercise, Mistake, Question
from minivllm.lab.trial import jobs, trial

# ---- 9.1 ----


def tokens_after_resuming() -> int:
    """What the youngest of the chapter's three requests runs when it comes back."""
    config = SchedulerConfig(num_blocks=8, block_size=4)
    run = trial(jobs([5, 6, 6], outputs=[12, 9, 8]), config)
    return [dict(frame.scheduled)[2] for frame in run.trace if 2 in dict(frame.scheduled)][4]


# ---- 9.2 ----

CLOCK = Clock(A100_40GB, OPT_13B)
SWAP_IS_CHEAPER = 2 * CLOCK.swap_seconds(512, 512 // 16) < CLOCK.recompute_seconds(512)

# ---- 9.3 ----


def num_entering(needs, num_free, watermark, num_running):
    entered = 0
    for need in needs:
        kept = watermark if num_running + entered > 0 else 0
        if num_free - kept < need:
            break
        num_free -= need
        entered += 1
    return entered


# ---- 9.4 ----


def victims(running, num_free, num_needed):
    names, left = [], list(running)
    while num_free < num_needed:
        name, num_blocks = left.pop()
        names.append(name)
        num_free += num_blocks
    return names


# ---- 9.5 ----


def swap_cost(num_tokens, block_size, num_layers, bytes_per_token, bandwidth, copy_cost):
    num_blocks = -(-num_tokens // block_size)
    num_copies = 2 * num_layers * num_blocks
    num_bytes = num_blocks * block_size * bytes_per_token
    return 2 * (num_copies * copy_cost + num_bytes / bandwidth)


EXERCISES = [
    Question(
        "9.1",
        answer=tokens_after_resuming,
        working="all it knows, 6 + 4: K and V of 9 of them are lost, the tenth never had any",
        mistakes=[
            Mistake(wrong=6, says="that is the prompt; the answer so far must be computed as well"),
            Mistake(wrong=9, says="that is what was lost; the last token was sampled, not yet run"),
            Mistake(wrong=1, says="that would do if its K and V were still somewhere: see swap"),
            Mistake(wrong=4, says="that is the answer so far; the prompt's K and V are gone too"),
        ],
    ),
    Question(
        "9.2",
        answer=SWAP_IS_CHEAPER,
        working="each way 2560 copies cost 25.6 ms and the bytes 16.8: 84.8 ms, against 43.1",
        mistakes=[
            Mistake(wrong=True, says="the bytes would be cheaper, but each small copy costs too"),
        ],
    ),
    Exercise(
        "9.3",
        num_entering,
        cases=[
            ([2, 3, 1], 8, 1, 2), ([8], 8, 1, 0), ([4, 4], 8, 1, 0), ([3, 1], 3, 1, 2),
            ([2, 1], 4, 1, 1), ([2, 2, 2], 4, 0, 1), ([], 8, 1, 0),
        ],
        mistakes=[
            Mistake(
                "break", "continue",
                says="you pass over one that does not fit; those behind it must wait as well",
            ),
            Mistake(
                "watermark if num_running + entered > 0 else 0", "watermark",
                says="you keep the watermark even when nobody runs, and a large one never enters",
            ),
            Mistake(
                "num_free - kept < need", "num_free - kept <= need",
                says="you refuse what fits exactly",
            ),
            Mistake(
                "num_free -= need", "pass",
                says="you give the same free blocks to all of them",
            ),
            Mistake(
                "num_running + entered > 0", "num_running > 0",
                says="you forget that those who have just entered run too",
            ),
            Mistake(
                "num_free - kept < need", "num_free < need",
                says="you do not use the watermark",
            ),
        ],
    ),
    Exercise(
        "9.4",
        victims,
        cases=[
            ([["a", 3], ["b", 2], ["c", 1]], 0, 1), ([["a", 3], ["b", 2], ["c", 1]], 0, 3),
            ([["a", 3], ["b", 2]], 2, 2), ([["a", 3], ["b", 2], ["c", 2]], 1, 4), ([], 1, 1),
        ],
        mistakes=[
            Mistake(
                "left.pop()", "left.pop(0)",
                says="you send the oldest away, and with it the guarantee that somebody ends",
            ),
            Mistake(
                "num_free += num_blocks", "num_free += 1",
                says="you count one block for each, but a victim gives up all of its blocks",
            ),
            Mistake(
                "num_free < num_needed", "num_free <= num_needed",
                says="you go on when there is just enough",
            ),
            Mistake(
                "while num_free", "if num_free",
                says="you stop after the first, even if that is not enough",
            ),
        ],
    ),
    Exercise(
        "9.5",
        swap_cost,
        cases=[
            (512, 16, 40, 819200, 25e9, 1e-5), (500, 16, 40, 819200, 25e9, 1e-5),
            (1, 128, 32, 131072, 50e9, 1e-5), (64, 64, 2, 1000, 1e6, 0.0),
        ],
        mistakes=[
            Mistake(
                "return 2 * (", "return (",
                says="you count one way only: out and in",
            ),
            Mistake(
                "2 * num_layers * num_blocks", "num_layers * num_blocks",
                says="you count one copy a layer, but K and V lie apart",
            ),
            Mistake(
                "num_blocks * block_size * bytes_per_token", "num_tokens * bytes_per_token",
                says="you move the filled slots of the last block only; blocks are moved whole",
            ),
            Mistake(
                "-(-num_tokens // block_size)", "num_tokens // block_size",
                says="you leave the last block behind when it is not full",
            ),
        ],
    ),
]  # fmt: skip
