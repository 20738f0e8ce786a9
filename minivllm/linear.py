"""One weight matrix in the layout that is fastest here: `F.linear` is the definition of them all.

A layout keeps the weight once, in the order in which its kernel reads it:
- `Plain`: [out, in], for `F.linear`: on a GPU, and wherever nothing else works;
- `OneDnn`: packed by oneDNN, on a CPU in float32 and bfloat16;
- `Panels`: for cpp/linear.cpp, on a CPU in float32, and cpp/linear_amx.cpp, in bfloat16 where the
  CPU has Intel's matrix unit.
The fast ones have a second use: a row's result does not depend, to the last bit, on how many other
rows are computed with it, while `F.linear` picks other kernels for few rows. Panels do so by
construction; of oneDNN it was seen in float32 on the CPUs we tried, and is not promised.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from minivllm import cpp_build

Linear = Callable[[Tensor], Tensor]  # x [T, in] -> [T, out]

# oneDNN: rows of x to lay a weight out for. Made for few it is slow at all sizes, for many at none.
PACKED_FOR_ROWS = 512
# Largest error accepted, as a part of the largest value; only these dtypes are packed.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
PANEL = 32  # outputs that the C++ kernels keep together


def make_linear(weight: Tensor, bias: Tensor | None = None, kernels: str = "torch") -> Linear:
    """y = x @ weight.T + bias, with weight [out, in] and bias [out] or None.

    kernels: "cpp" where the C++ kernels may be used (device.py decides), else "torch".
    """
    if kernels == "cpp" and Panels.can_hold(weight):
        return Panels(weight, bias)
    packed = pack(weight)
    return Plain(weight, bias) if packed is None else OneDnn(packed, bias)


class Plain:
    """The definition."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out]."""
        return F.linear(x, self.weight, self.bias)  # [T, out]


class OneDnn:
    """A weight laid out by `pack`."""

    def __init__(self, packed: Tensor, bias: Tensor | None) -> None:
        self.packed, self.bias = packed, bias

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out]."""
        if len(x) == 1:  # one row alone takes another kernel, whose last bits differ
            return packed_linear(x.repeat(2, 1), self.packed, self.bias)[:1]  # [1, out]
        return packed_linear(x, self.packed, self.bias)  # [T, out]


def pack(weight: Tensor) -> Tensor | None:
    """Lay out weight [out, in] for `packed_linear`; None where that fails or gives wrong values.

    The operators are those of torch's own compiler. They carry no promise, so each packed weight is
    compared with the definition before it is used.
    """
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


class Panels:
    """A weight in panels of 32 outputs; the last one is filled up with zeros."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.num_out = len(weight)
        missing = -self.num_out % PANEL
        weight = F.pad(weight, (0, 0, 0, missing)).contiguous()  # [out to 32s, in]
        self.bias = None if bias is None else F.pad(bias, (0, missing))  # [out to 32s]
        self.panels = torch.empty_like(weight)  # as long as [out to 32s, in], in another order
        pack_weight = cpp_build.kernel("pack_weight", weight.dtype)
        pack_weight(weight.data_ptr(), self.panels.data_ptr(), *weight.shape)

    @staticmethod
    def can_hold(weight: Tensor) -> bool:
        """Whether there is a kernel for this weight here."""
        if weight.dtype == torch.bfloat16:
            return weight.shape[1] % PANEL == 0 and cpp_build.has_amx()
        return weight.dtype == torch.float32

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out]."""
        x, panels = x.contiguous(), self.panels  # [T, in]
        if x.dtype != panels.dtype or x.dim() != 2 or x.shape[1] != panels.shape[1]:
            raise ValueError(
                f"a {panels.dtype} weight of {panels.shape[1]} inputs got x of {x.dtype}, "
                f"shape {list(x.shape)}"
            )
        out = x.new_empty(len(x), len(panels))  # [T, out to 32s]
        bias = None if self.bias is None else self.bias.data_ptr()
        multiply = cpp_build.kernel("linear", x.dtype)
        shape = (len(x), *panels.shape)
        multiply(x.data_ptr(), panels.data_ptr(), bias, out.data_ptr(), *shape)
        return out[:, : self.num_out]  # [T, out]
