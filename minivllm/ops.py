"""The small operators of the model in plain torch: the definition of what cpp_ops.py does faster.

Legend: T tokens, E hidden_size, I intermediate_size, D head_dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x [.., E] / sqrt(mean of its squares + eps) * weight [E] -> [.., E]."""
    return F.rms_norm(x, x.shape[-1:], weight, eps)  # like x


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2 I], gate before up -> silu(gate) * up [T, I], silu(g) = g / (1 + exp(-g))."""
    gate, up = gate_up.chunk(2, dim=1)  # [T, I]
    return F.silu(gate).mul_(up)  # [T, I]


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + D / 2) of x [T, heads, D] by the angles behind cos and sin [T, 1, D].

    sin is negative in its first half: out = x * cos + (x with its halves swapped) * sin.
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)  # [T, heads, D]
