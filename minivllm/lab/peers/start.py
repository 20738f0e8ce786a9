"""Start the peers a benchmark asks for, with our weights and the workload's limits."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from minivllm.lab.peers import places
from minivllm.lab.peers.model_files import check_plain_llama, write_folder, write_gguf
from minivllm.lab.peers.process import Peer, command_of
from minivllm.lab.peers.protocol import Job
from minivllm.lab.workload import Workload
from minivllm.weights import load_weights

PEERS = ("vllm", "llamacpp", "hf_cb")
# As the child sees them, which runs in their folder: vLLM keeps what it compiled under the name of
# the model, and would compile for minutes again if that were another temporary folder every time.
FOLDER, GGUF = "weights", "weights.gguf"


def launch(name: str, threads: int) -> tuple[list[str], dict[str, str]]:
    """The command of a peer's child and its settings of the environment.

    Raises ValueError, with what installs it, for a peer that is not installed.
    """
    python, environment = Path(sys.executable), {"OMP_NUM_THREADS": str(threads)}
    if name == "vllm":
        python = places.vllm_python()
        environment |= places.vllm_environment(python, threads)
    elif name == "llamacpp":
        environment[places.LLAMA_SERVER] = str(places.llama_server())
    else:
        places.check_transformers()
    return command_of(python, f"minivllm.lab.peers.{name}_child"), environment


def start_peers(
    names: list[str], model: str, dtype: torch.dtype, workload: Workload, prefix_caching: bool,
    stack: ExitStack,
) -> dict[str, Peer]:  # fmt: skip
    """The peers of these names, loaded; `stack` ends them and deletes the files of the weights.

    Raises ValueError for a peer that is not installed, a model that is no plain Llama, or a child
    that does not load.
    """
    threads = torch.get_num_threads()
    launches = {name: launch(name, threads) for name in names}
    config, weights = load_weights(model, dtype)
    check_plain_llama(config, ", ".join(names))
    folder = Path(stack.enter_context(TemporaryDirectory(prefix="minivllm-peers-")))
    if {"vllm", "hf_cb"} & set(names):
        write_folder(folder / FOLDER, config, weights, dtype)
    if "llamacpp" in names:
        write_gguf(folder / GGUF, config, weights, dtype)
    del weights
    peers = {}
    for name, (command, environment) in launches.items():
        job = Job(
            model=GGUF if name == "llamacpp" else FOLDER,
            dtype=str(dtype).removeprefix("torch."),
            threads=threads,
            max_num_seqs=workload.max_num_seqs,
            max_model_len=workload.row_slots,
            num_kv_slots=workload.batch_size * workload.row_slots,
            prefix_caching=prefix_caching,
        )
        peers[name] = Peer(name, command, environment, folder, job)
        stack.callback(peers[name].close)
    return peers
