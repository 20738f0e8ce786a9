"""The torch-free twin of static batching: rows in step, and a wrong place shows as a wrong token.

A row is a contiguous list of (token, position, digest), left-padded with None. Each step appends
one column to every row, also to those that have ended.
"""

from __future__ import annotations

from minivllm.fake_executor import Slot, choose_token, extend_digest
from minivllm.request import Request


class FakeStaticExecutor:
    """`batch_size` rows of at most `max_model_len` columns; tokens are 0 .. vocab_size - 1."""

    def __init__(self, batch_size: int, max_model_len: int, vocab_size: int = 1000) -> None:
        self.batch_size, self.max_model_len, self.vocab_size = batch_size, max_model_len, vocab_size
        self.rows: list[Request] = []
        self.columns: list[list[Slot | None]] = []  # one list per row; None is padding

    def execute(self, rows: list[Request]) -> list[int]:
        """One step of every row; returns a token for each.

        Raises RuntimeError when a row is full or the batch is too large.
        """
        if rows is not self.rows:
            self._start(rows)
        else:
            for request, row in zip(rows, self.columns, strict=True):
                self._append(row, request.token_ids[-1])
        tokens = []
        for request, row in zip(rows, self.columns, strict=True):
            self._check(request, row)
            tokens.append(choose_token(request, row[-1].digest, self.vocab_size))
        return tokens

    def _start(self, rows: list[Request]) -> None:
        if len(rows) > self.batch_size:
            raise RuntimeError(f"{len(rows)} rows in a batch of {self.batch_size}")
        self.rows = rows
        longest = max(request.num_tokens for request in rows)
        self.columns = [[None] * (longest - request.num_tokens) for request in rows]
        for request, row in zip(rows, self.columns, strict=True):
            for token_id in request.token_ids:
                self._append(row, token_id)

    def _append(self, row: list[Slot | None], token_id: int) -> None:
        if len(row) == self.max_model_len:
            raise RuntimeError(f"a row has {len(row)} columns already, all that it may have")
        before = row[-1] if row else None
        digest, position = (before.digest, before.position + 1) if before else (0, 0)
        row.append(Slot(token_id, position, extend_digest(digest, token_id)))

    def _check(self, request: Request, row: list[Slot | None]) -> None:
        """The newest slot vouches for its whole row, unless the request has ended."""
        last = row[-1]
        wanted = (request.token_ids[-1], request.num_tokens - 1)
        if not request.is_finished and last[:2] != wanted:
            raise RuntimeError(f"{request.name}: read {last}, not {wanted}")
