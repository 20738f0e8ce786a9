"""The model under static batching: one contiguous K and V per row, prompts padded on the left.

Padding on the left puts the last token of every prompt into the same column, so that all rows
decode in step. A padded row counts its positions from its own first token, and its padding stays
masked in every step, not only in the first.

    column       0  1  2  3  4  5  6 | 7  8          P  padding: computed, never attended to
    row 0        a  b  c  d  e  f  g | h  i
    row 1        P  P  P  P  x  y  z | w  v          positions of row 1: 0 1 2 3 4 from column 4 on

Legend: B rows, C columns of this step, S columns so far, M columns of a row, L layers, E hidden
size, H / KH query / KV heads, G = H // KH, D head_dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from minivllm.model import LlamaModel
from minivllm.request import Request
from minivllm.sampler import sample

PADDING_TOKEN = 0


class StaticModelExecutor:
    """`batch_size` rows of `max_model_len` columns, reserved from the start to the end."""

    def __init__(self, model: LlamaModel, batch_size: int, max_model_len: int) -> None:
        config = model.config
        self.model = model
        self.vocab_size = config.vocab_size
        shape = (config.num_layers, batch_size, config.num_kv_heads, max_model_len, config.head_dim)
        self.key = torch.zeros(shape, dtype=model.dtype, device=model.device)  # [L, B, KH, M, D]
        self.value = torch.zeros_like(self.key)  # [L, B, KH, M, D]
        self.rows: list[Request] = []
        self.num_columns = 0
        self.padding = torch.zeros(0)  # [B] columns of padding in front of each row

    @property
    def nbytes(self) -> int:
        """Bytes of K and V, all of them reserved."""
        return self.key.nbytes + self.value.nbytes

    @torch.inference_mode()
    def execute(self, rows: list[Request]) -> list[int]:
        """One step of every row, ended or not; returns a token for each."""
        if rows is not self.rows:
            self.num_columns = 0
            columns = self._pad_prompts(rows)  # [B, C]
        else:
            columns = torch.tensor([[request.token_ids[-1]] for request in rows])  # [B, 1]
        hidden = self._forward(columns.to(self.model.device))  # [B, C, E]
        self.rows = rows  # not before: a prefill that was broken off is begun again
        logits = self.model.compute_logits(hidden[:, -1])  # [B, V]
        tokens = sample(
            logits,
            [request.params for request in rows],
            [request.next_draw() for request in rows],
            [request.suppressed_token_ids for request in rows],
        )
        return [token.token_id for token in tokens]

    def _pad_prompts(self, rows: list[Request]) -> Tensor:
        """The prompts as columns [B, C], padded on the left; sets `padding`."""
        longest = max(request.num_tokens for request in rows)
        padding = [longest - request.num_tokens for request in rows]
        self.padding = torch.tensor(padding, device=self.model.device)  # [B]
        return torch.tensor(
            [
                [PADDING_TOKEN] * pad + request.token_ids
                for pad, request in zip(padding, rows, strict=True)
            ]
        )  # [B, C]

    def _forward(self, columns: Tensor) -> Tensor:
        """Run `columns` [B, C] as the next C columns; returns hidden states [B, C, E]."""
        num_rows, num_new = columns.shape
        start, end = self.num_columns, self.num_columns + num_new
        column = torch.arange(start, end, device=columns.device)  # [C]
        positions = (column - self.padding[:, None]).clamp(min=0)  # [B, C]
        mask = self._mask(column, end)  # [B, 1, C, S]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            split = (num_rows, num_new)
            q, k, v = (x.unflatten(0, split).transpose(1, 2) for x in (q, k, v))  # [B, heads, C, D]
            self.key[layer, :num_rows, :, start:end] = k  # [B, KH, C, D]
            self.value[layer, :num_rows, :, start:end] = v  # [B, KH, C, D]
            keys = self.key[layer, :num_rows, :, :end]  # [B, KH, S, D]
            values = self.value[layer, :num_rows, :, :end]  # [B, KH, S, D]
            out = attend_columns(q, keys, values, mask)  # [B, H, C, D]
            return out.transpose(1, 2).flatten(0, 1)  # [B * C, H, D]

        hidden = self.model.forward(columns.flatten(), positions.flatten(), attend)  # [B * C, E]
        self.num_columns = end
        return hidden.unflatten(0, (num_rows, num_new))  # [B, C, E]

    def _mask(self, column: Tensor, end: int) -> Tensor:
        """0 or -inf, added to the scores: what comes later, and the row's padding, is hidden.

        A column of padding sees itself, since a softmax over nothing is NaN.
        """
        key_column = torch.arange(end, device=column.device)  # [S]
        later = key_column > column[:, None]  # [C, S]
        is_padding = key_column < self.padding[:, None, None, None]  # [B, 1, 1, S]
        itself = key_column == column[:, None]  # [C, S]
        unseen = (later | is_padding) & ~itself  # [B, 1, C, S]
        mask = torch.zeros_like(unseen, dtype=self.key.dtype)  # [B, 1, C, S]
        return mask.masked_fill_(unseen, -torch.inf)  # [B, 1, C, S]


def attend_columns(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention of q [B, H, C, D] over k and v [B, KH, S, D], `mask` [B, 1, C, S] added.

    A decode (C = 1) gives SDPA the query heads of one KV head as query positions, so that K and V
    are not repeated: the layout of the paged path, to compare like with like.
    """
    num_kv_heads = k.shape[1]
    if q.shape[2] == 1:
        grouped = q.squeeze(2).unflatten(1, (num_kv_heads, -1))  # [B, KH, G, D]
        out = F.scaled_dot_product_attention(grouped, k, v, mask)  # [B, KH, G, D]
        return out.flatten(1, 2)[:, :, None]  # [B, H, 1, D]
    return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)  # [B, H, C, D]
