"""Exercises of chapter 10, the second half: copy on write, and keys of blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from minivllm.allocator import BlockPool
from minivllm.config import SchedulerConfig
from minivllm.lab.exam import Exam
from minivllm.lab.exercise import Exercise, Mistake
from minivllm.lab.trial import trial
from minivllm.prefix_cache import PrefixCache
from minivllm.scheduler import Scheduler
from minivllm.view.twin_runs import Job

# ---- 10.5 ----


def make_writable(pool, table, position, block_size):
    index = position // block_size
    if index == len(table):
        table += pool.get_new_blocks(1)
        return None
    old = table[index]
    if pool.ref_cnt[old] == 1:
        return None
    table[index] = pool.get_new_blocks(1)[0]
    pool.free_blocks([old])
    return old, table[index]


def examine_make_writable(exam: Exam, make_writable: Callable[..., Any]) -> None:
    pool = BlockPool(8)
    a = pool.get_new_blocks(3)
    pool.touch(a)
    b = list(a)
    tables = {"A": a, "B": b}
    for name, position, copied, table in [
        ("A", 10, (2, 3), [0, 1, 3]), ("A", 11, None, [0, 1, 3]), ("B", 10, None, [0, 1, 2]),
        ("A", 12, None, [0, 1, 3, 4]), ("B", 11, None, [0, 1, 2]), ("B", 12, None, [0, 1, 2, 5]),
    ]:  # fmt: skip
        what = f"{name} writes at position {position} (blocks of 4, a prompt of 10 shared)"
        got = make_writable(pool, tables[name], position, 4)
        exam.equal(got, copied, f"{what}: the answer")
        exam.equal(tables[name], table, f"{what}: its table")
        try:
            pool.check_integrity(a + b)
        except RuntimeError as error:
            exam.true(False, f"{what}: {error}")


# ---- 10.6 ----


def salted_keys(token_ids, block_size, salt):
    keys, key = [], repr(salt).encode()
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        tokens = token_ids[start : start + block_size]
        key = hashlib.sha256(key + repr(tokens).encode()).digest()
        keys.append(key)
    return keys


def scheduler_with(salted_keys: Callable[..., Any]) -> type[Scheduler]:
    """A scheduler whose prefix cache trusts these keys."""

    class TrustingCache(PrefixCache):
        def block_hashes(
            self, token_ids: Sequence[int], known: Iterable[bytes] = (), salt: str | None = None
        ) -> list[bytes]:
            return list(salted_keys(list(token_ids), self.block_size, salt))

        @staticmethod
        def _same(*arguments: Any) -> bool:
            return True

    class TrustingScheduler(Scheduler):
        def __init__(self, config: SchedulerConfig, **parts: Any) -> None:
            super().__init__(config, **parts)
            self.kv.prefix_cache = TrustingCache(config.block_size)

    return TrustingScheduler


def examine_salted_keys(exam: Exam, salted_keys: Callable[..., Any]) -> None:
    a = salted_keys([1, 2, 3, 4, 5, 6, 7, 8], 4, None)
    exam.equal(len(a), 2, "the number of keys of 8 tokens in blocks of 4")
    a = salted_keys([1, 2, 3, 4, 5, 6, 7, 8, 9], 4, None)
    exam.equal(len(a), 2, "the number of keys of 9 tokens in blocks of 4")
    work = [Job("r0", [1, 2, 3, 4, 5, 6, 7, 8, 9], 3), Job("r1", [20, 21, 22, 23, 0], 3)]
    work += [Job("r2", [20, 21, 22, 23, 5, 6, 7, 8, 9], 3), Job("r3", [4, 3, 2, 1, 5], 3)]
    work += [Job("r4", [1, 2, 3, 4, 5, 6, 7, 8, 0], 3)]
    config = SchedulerConfig(num_blocks=20, block_size=4, enable_prefix_caching=True)
    run = trial(work, config, scheduler=scheduler_with(salted_keys), arrivals=[0, 4, 8, 12, 16])
    found = run.engine.scheduler.stats.num_cached_tokens
    exam.equal(found, 12, "tokens found, of five requests of which two share a beginning,")
    salted = salted_keys([1, 2, 3, 4, 5, 6, 7, 8, 9], 4, "a")
    exam.true(salted[0] != a[0], "the first block has the same key with salt 'a' and without")
    exam.true(salted[1] != a[1], "the second block has the same key with salt 'a' and without")
    again = salted_keys([1, 2, 3, 4, 5, 6, 7, 8, 9], 4, "a")
    exam.equal(again, salted, "the keys of the same text with the same salt")


EXERCISES = [
    Exercise(
        "10.5",
        make_writable,
        examine=examine_make_writable,
        mistakes=[
            Mistake(
                "if pool.ref_cnt[old] == 1:", "if pool.ref_cnt[old] >= 1:",
                says="you never copy, and the samples write over each other",
            ),
            Mistake(
                "    pool.free_blocks([old])\n", "",
                says="you forget that the old block has one holder less: it can never be freed",
            ),
            Mistake(
                "    if pool.ref_cnt[old] == 1:\n        return None\n", "",
                says="you copy a block that nobody else holds any more",
            ),
            Mistake(
                "return old, table[index]", "return table[index], old",
                says="you turn the copy around: from the old block to the new one",
            ),
        ],
    ),
    Exercise(
        "10.6",
        salted_keys,
        examine=examine_salted_keys,
        mistakes=[
            Mistake(
                "sha256(key + repr(tokens).encode())", "sha256(repr((salt, tokens)).encode())",
                says="you hash each block for itself, but its K and V depend on all before it",
            ),
            Mistake(
                "repr(salt).encode()", 'b""',
                says="you do not use the salt",
            ),
            Mistake(
                "len(token_ids) - block_size + 1", "len(token_ids)",
                says="you give a key to a block that is not full",
            ),
            Mistake(
                "repr(tokens)", "repr(sorted(tokens))",
                says="you lose the order of the tokens",
            ),
            Mistake(
                "keys, key = [], repr(salt).encode()", 'keys, key = [repr(salt).encode()], b""',
                says="you give the salt a key of its own; it must be part of the first block's",
            ),
        ],
    ),
]  # fmt: skip
