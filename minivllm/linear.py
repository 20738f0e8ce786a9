"""One weight matrix: `F.linear` is the definition, oneDNN's packed layout the fast path on a CPU.

oneDNN lays a weight out once in the order its kernels read it. In float32 that has a second use:
a row's result does not depend, to the last bit, on how many other rows are computed with it (seen
on the CPUs we tried, not promised by oneDNN), while `F.linear` picks other kernels for few rows.
The operators are those of torch's own compiler. They carry no promise either, so each packed weight
is compared with the definition before it is used.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# Rows of x to lay a weight out for. Made for few rows it is slow at all sizes, for many at none.
PACKED_FOR_ROWS = 512
# Largest error accepted, as a part of the largest value; only these dtypes are packed.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}


class Linear:
    """y = x @ weight.T + bias, with weight [out, in] and bias [out] or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.bias = bias
        self._packed = pack(weight)  # opaque layout, or None
        self._weight = weight if self._packed is None else None  # [out, in]: one of the two is kept

    @property
    def is_packed(self) -> bool:
        """Whether the oneDNN layout is in use."""
        return self._packed is not None

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out]."""
        if self._packed is None:
            return F.linear(x, self._weight, self.bias)  # [T, out]
        if len(x) == 1:  # one row alone takes another kernel, whose last bits differ
            return packed_linear(x.repeat(2, 1), self._packed, self.bias)[:1]  # [1, out]
        return packed_linear(x, self._packed, self.bias)  # [T, out]


def pack(weight: Tensor) -> Tensor | None:
    """Lay out weight [out, in] for `packed_linear`; None where that fails or gives wrong values."""
    if weight.device.type != "cpu" or weight.dtype not in TOLERANCE:
        return None
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, weight.shape[1], generator=generator).to(weight.dtype)  # [4, in]
    expected = F.linear(x, weight)  # [4, out]
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_FOR_ROWS)
        error = (packed_linear(x, packed, None) - expected).abs().max()
    except (AttributeError, RuntimeError):  # built without oneDNN, or the operators have changed
        return None
    return packed if error <= TOLERANCE[weight.dtype] * expected.abs().max() else None


def packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """x [T, in] times a weight laid out by `pack` -> [T, out]."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
