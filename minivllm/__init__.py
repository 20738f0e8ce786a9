"""minivllm: continuous batching on a paged KV cache, small enough to read in an afternoon.

The names below are imported when they are first used, so `import minivllm.scheduler` and the rest
of the bookkeeping half load without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minivllm.beam_search import BeamSearchParams
    from minivllm.engine import Engine
    from minivllm.llm import LLM
    from minivllm.outputs import CompletionOutput, RequestOutput
    from minivllm.sampling_params import SamplingParams

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "BeamSearchParams",
    "CompletionOutput",
    "Engine",
    "RequestOutput",
    "SamplingParams",
]


def __getattr__(name: str) -> object:
    """Import a public name from its module on first use (PEP 562)."""
    homes = {
        "LLM": "minivllm.llm",
        "BeamSearchParams": "minivllm.beam_search",
        "CompletionOutput": "minivllm.outputs",
        "Engine": "minivllm.engine",
        "RequestOutput": "minivllm.outputs",
        "SamplingParams": "minivllm.sampling_params",
    }
    if name not in homes:
        raise AttributeError(f"module 'minivllm' has no attribute {name!r}")
    value = getattr(import_module(homes[name]), name)
    globals()[name] = value  # the next use finds it without coming here
    return value


def __dir__() -> list[str]:
    """List the lazily imported names beside the module's own."""
    return sorted({*globals(), *__all__})
