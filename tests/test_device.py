"""Device and dtype: chosen in one place, refused by name."""

from dataclasses import replace

import pytest
import torch

from minivllm import cpp_build
from minivllm import device as device_module
from minivllm.device import (
    available_bytes,
    choose_attention_backend,
    choose_device,
    choose_dtype,
    choose_kernels,
)
from minivllm.model import ModelConfig
from minivllm.weights import TINY_CONFIG

needs_cpp = pytest.mark.skipif(cpp_build.why_not() is not None, reason="no C++ kernels here")


def attention_on(
    device: torch.device,
    backend: object,
    config: ModelConfig = TINY_CONFIG,
    dtype: torch.dtype = torch.float32,
) -> str:
    """What is chosen for such a model, by default the tiny one."""
    return choose_attention_backend(backend, config, dtype, device)


def test_the_default_fits_the_machine():
    device = choose_device("auto")
    assert device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert choose_dtype("auto", torch.device("cpu")) == torch.float32
    assert choose_dtype("auto", torch.device("cuda")) == torch.bfloat16


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_a_dtype_by_name_or_as_it_is(name: str):
    cpu = choose_device("cpu")
    expected = getattr(torch, name)
    for dtype in (name, f"torch.{name}", expected):
        assert choose_dtype(dtype, cpu) == expected


@pytest.mark.parametrize("dtype", ["int8", "float64", torch.int32, None, "Float32"])
def test_any_other_dtype_is_refused(dtype: object):
    with pytest.raises(ValueError, match="dtype must be auto, float32, bfloat16, float16, got"):
        choose_dtype(dtype, torch.device("cpu"))


@pytest.mark.parametrize("device", ["nowhere", "cpu:x", 5, "meta", "mps"])
def test_any_other_device_is_refused(device: object):
    with pytest.raises(ValueError, match="device"):
        choose_device(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is present")
def test_cuda_that_is_not_there():
    with pytest.raises(ValueError, match="device is 'cuda:0', but torch sees no CUDA device"):
        choose_device("cuda:0")


@needs_cpp
def test_attention_on_a_cpu_is_cpp_unless_the_interpreter_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
):
    """Thousands of times slower, the interpreter is never taken by itself."""
    cpu = torch.device("cpu")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    chosen = [attention_on(cpu, name) for name in ("auto", "torch", "cpp", "triton")]
    assert chosen == ["cpp", "torch", "cpp", "triton"]
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ValueError, match="'triton', but the device is cpu, and TRITON_INTERPRET"):
        attention_on(cpu, "triton")


def test_without_the_cpp_kernels_a_cpu_takes_torch(monkeypatch: pytest.MonkeyPatch):
    """No compiler, a dtype or a size they do not know: "auto" goes on, "cpp" says why it cannot."""
    cpu = torch.device("cpu")
    for dtype, head_dim, reason in [
        (torch.float32, 64, "no compiler"),
        (torch.float16, 64, "know float32 and bfloat16, not torch.float16"),
        (torch.float32, 24, "head_dim is 24, and the C"),
        (torch.float32, 160, "head_dim is 160, and the C"),
    ]:
        monkeypatch.setattr(cpp_build, "why_not", lambda: "no compiler was found")
        config = replace(TINY_CONFIG, head_dim=head_dim)
        assert attention_on(cpu, "auto", config, dtype) == "torch"
        assert choose_kernels("auto", config, dtype, cpu) == "torch"
        with pytest.raises(ValueError, match=f"attention_backend is 'cpp', but .*{reason}"):
            attention_on(cpu, "cpp", config, dtype)
        with pytest.raises(ValueError, match=f"kernels is 'cpp', but .*{reason}"):
            choose_kernels("cpp", config, dtype, cpu)
    with pytest.raises(ValueError, match="kernels must be auto, torch or cpp, got 'fast'"):
        choose_kernels("fast", TINY_CONFIG, torch.float32, cpu)


def test_attention_on_a_gpu_is_triton_where_it_can_run(monkeypatch: pytest.MonkeyPatch):
    """A pretended GPU: new enough, too old, and one whose triton is missing."""
    gpu = torch.device("cuda")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(device_module, "find_spec", lambda name: name)
    assert [attention_on(gpu, name) for name in ("auto", "triton")] == ["triton"] * 2
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert attention_on(gpu, "auto") == "torch"
    with pytest.raises(ValueError, match="'triton', but the GPU has compute capability 7.5"):
        attention_on(gpu, "triton")
    monkeypatch.setattr(device_module, "find_spec", lambda name: None)
    assert attention_on(gpu, "auto") == "torch"
    with pytest.raises(ValueError, match="'triton', but the package triton is not installed"):
        attention_on(gpu, "triton")


@pytest.mark.parametrize("backend", ["Triton", "", None, "flash"])
def test_any_other_attention_is_refused(backend: object):
    with pytest.raises(ValueError, match="attention_backend must be auto, torch, cpp or triton"):
        attention_on(torch.device("cpu"), backend)


def test_available_bytes_are_what_the_system_tells():
    available = available_bytes(torch.device("cpu"))
    assert available is None or 0 < available < 1 << 50
