"""A roofline clock: how long a step would take on a device, from bytes and FLOPs alone.

    time of a part = max(bytes / bandwidth, FLOPs / peak)       linear layers, head, attention
    time of a step = the parts + operators * launch + what swapping moves over PCIe

It knows no kernel and no scheduler: a bound that good kernels come near to. A figure made with it
is *modelled*. On a CPU, where the same cores fetch and compute, bytes and FLOPs overlap in part:
`overlap` says how much of the shorter of the two hides behind the longer.
Legend: E hidden, I intermediate, H / KH query / KV heads, D head_dim, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minivllm.page_table import num_blocks_for
from minivllm.request import Request
from minivllm.step_records import SchedulerOutput


@dataclass(frozen=True)
class Device:
    """What a device can do. bandwidth, pcie: bytes a second. flops: a second, in the dtype used.

    launch: seconds that one operator costs whatever its size. copy_launch: the same for one copy
    over PCIe. overlap: the share of the shorter of fetching and computing that hides behind the
    longer, 1 on a GPU, 0 where they take turns. kv_passes: how often attention moves K and V, 1 for
    a kernel that reads them in place, 3 for a gather (read, write, read).
    """

    name: str
    bandwidth: float
    flops: float
    launch: float
    pcie: float = 0.0
    copy_launch: float = 0.0
    overlap: float = 1.0
    kv_passes: float = 1.0


@dataclass(frozen=True)
class ModelShape:
    """What the clock must know of a model. itemsize: bytes of a weight and of a KV entry.

    >>> OPT_13B.kv_bytes_per_token, round(OPT_13B.weight_bytes / 1e9, 1)
    (819200, 25.7)
    """

    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    itemsize: int = 2
    is_gated: bool = True  # gate, up and down in the MLP; else up and down (OPT, GPT-3)
    operators: int = 12  # of a layer, each launched once a step

    @property
    def layer_params(self) -> int:
        """Weights of all layers' matrices."""
        heads = 2 * (self.num_heads + self.num_kv_heads) * self.head_dim
        inner = (3 if self.is_gated else 2) * self.intermediate_size
        return self.num_layers * self.hidden_size * (heads + inner)

    @property
    def head_params(self) -> int:
        return self.hidden_size * self.vocab_size

    @property
    def weight_bytes(self) -> int:
        """Bytes a step reads of the weights: layers and head; of the embedding only a few rows."""
        return self.itemsize * (self.layer_params + self.head_params)

    @property
    def kv_bytes_per_token(self) -> int:
        """2 (K and V) * L * KH * D * itemsize."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.itemsize

    @property
    def activation_bytes_per_token(self) -> int:
        """What the small operators of all layers read and write: about 16 E + 8 I numbers each."""
        numbers = 16 * self.hidden_size + 8 * self.intermediate_size
        return self.num_layers * numbers * self.itemsize


@dataclass
class StepWork:
    """The work of one step, counted: all that the clock needs to know of it.

    num_tokens: on the T axis, padding included. num_sampled: rows of the head. num_kv_read: KV
    positions that attention reads, over all requests. num_pairs: query-key pairs it computes.
    num_moved, num_moves: tokens and blocks swapped.
    """

    num_tokens: int = 0
    num_sampled: int = 0
    num_kv_read: int = 0
    num_pairs: int = 0
    num_moved: int = 0
    num_moves: int = 0

    @classmethod
    def of_step(cls, output: SchedulerOutput, block_size: int) -> StepWork:
        """The work of a scheduled step, before the update moves its requests on."""
        num_tokens = num_kv_read = num_pairs = 0
        for request, num_new in zip(output.requests, output.num_scheduled_tokens, strict=True):
            before = request.num_computed_tokens
            num_tokens += num_new
            num_kv_read += before + num_new
            num_pairs += before + 1 if num_new == 1 else _pairs(before, num_new)
        num_moves = sum(op.kind != "copy" for op in output.block_ops)
        num_requests = len(output.requests)
        num_moved = num_moves * block_size
        return cls(num_tokens, num_requests, num_kv_read, num_pairs, num_moved, num_moves)

    @classmethod
    def of_rows(cls, rows: Sequence[Request], num_columns: int, num_new: int) -> StepWork:
        """The work of a step of a static batch: every row, `num_new` columns after `num_columns`,
        padding and ended rows included."""
        num_rows = len(rows)
        num_pairs = num_rows * _pairs(num_columns, num_new)
        kv_read = num_rows * (num_columns + num_new)
        return cls(num_rows * num_new, num_rows, kv_read, num_pairs)


def _pairs(num_before: int, num_new: int) -> int:
    """Query-key pairs of `num_new` queries behind `num_before` positions, each seeing all up to
    itself.

    >>> _pairs(0, 3), _pairs(10, 1)
    (6, 11)
    """
    return num_new * num_before + num_new * (num_new + 1) // 2


class Clock:
    """Seconds of a step of `model` on `device`.

    >>> clock = Clock(A100_40GB, OPT_13B)
    >>> one, many = (clock.seconds(StepWork(n, n, 500 * n, 500 * n)) for n in (1, 16))
    >>> f"{1000 * one:.1f} ms, {1000 * many:.1f} ms"  # 16 requests cost hardly more than one
    '17.8 ms, 21.9 ms'
    """

    def __init__(self, device: Device, model: ModelShape) -> None:
        self.device, self.model = device, model

    def seconds(self, work: StepWork) -> float:
        """The time of one step; an empty one takes none."""
        if not work.num_tokens and not work.num_moves:
            return 0.0
        return sum(self.parts(work).values())

    def parts(self, work: StepWork) -> dict[str, float]:
        """Seconds by part: linear, head, attention, launch, swap."""
        device, model = self.device, self.model
        size = model.itemsize
        activations = work.num_tokens * model.activation_bytes_per_token
        kv_bytes = model.kv_bytes_per_token * (device.kv_passes * work.num_kv_read)
        kv_bytes += model.kv_bytes_per_token * work.num_tokens  # written
        kv_flops = 4 * model.num_layers * model.num_heads * model.head_dim * work.num_pairs
        linear_flops = 2 * model.layer_params * work.num_tokens
        has_head = work.num_sampled > 0
        return {
            "linear": self._roof(size * model.layer_params + activations, linear_flops),
            "head": self._roof(
                size * model.head_params * has_head, 2 * model.head_params * work.num_sampled
            ),
            "attention": self._roof(kv_bytes, kv_flops),
            "launch": device.launch * model.operators * model.num_layers,
            "swap": self.swap_seconds(work.num_moved, work.num_moves),
        }

    def _roof(self, num_bytes: float, flops: float) -> float:
        times = num_bytes / self.device.bandwidth, flops / self.device.flops
        return max(times) + (1 - self.device.overlap) * min(times)

    def swap_seconds(self, num_tokens: int, num_blocks: int) -> float:
        """Moving `num_tokens` tokens in `num_blocks` blocks over PCIe, one way.

        K and V of a block lie apart in each layer, so a block is 2 L copies of its own.
        """
        if not num_blocks:
            return 0.0
        num_copies = 2 * self.model.num_layers * num_blocks
        num_bytes = num_tokens * self.model.kv_bytes_per_token
        return num_copies * self.device.copy_launch + num_bytes / self.device.pcie

    def recompute_seconds(self, num_tokens: int) -> float:
        """Computing the KV of `num_tokens` lost tokens again, in a step of their own."""
        return self.seconds(StepWork(num_tokens, 1, num_tokens, _pairs(0, num_tokens)))


def num_kv_slots(model: ModelShape, kv_bytes: float, block_size: int = 1) -> int:
    """Token slots that `kv_bytes` pay for, in whole blocks.

    >>> num_kv_slots(OPT_13B, 12 * 2**30)  # the vLLM paper's 15.7 K
    15728
    """
    block_bytes = block_size * model.kv_bytes_per_token
    return num_blocks_for(int(kv_bytes) - block_bytes + 1, block_bytes) * block_size


# Data sheets: bandwidth and dense half-precision peak; PCIe 4.0 and 5.0 x16, one way, as measured
# copies reach it (about 80 % of the nominal rate). A launch on a busy GPU hides behind the kernel
# before it; 2 us are left between two. 10 us: one asynchronous copy over PCIe.
A100_40GB = Device("A100-40GB", 1.555e12, 312e12, 2e-6, pcie=25e9, copy_launch=10e-6)
H200 = Device("H200", 4.8e12, 989e12, 2e-6, pcie=50e9, copy_launch=10e-6)
# A laptop's CPU with eight cores in float32: dual-channel DDR5, AVX2, torch's operators.
LAPTOP = Device("laptop CPU", 60e9, 500e9, 10e-6, overlap=0.0, kv_passes=3)

OPT_13B = ModelShape("OPT-13B", 40, 5120, 20480, 40, 40, 128, 50272, is_gated=False)
LLAMA_3_8B = ModelShape("Llama-3-8B", 32, 4096, 14336, 32, 8, 128, 128256)
SMOLLM2 = ModelShape("SmolLM2-135M", 30, 576, 1536, 9, 3, 64, 49152, itemsize=4)
GPT_3 = ModelShape("GPT-3 175B", 96, 12288, 49152, 96, 96, 128, 50257, is_gated=False)
