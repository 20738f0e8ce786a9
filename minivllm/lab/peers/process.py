"""The benchmark's half of the conversation with a peer: start the child, ask, end it.

Invariant: when a Peer is closed, nothing it started is left, whatever happened before: a child
leads a process group of its own, and the group is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import minivllm
from minivllm.lab.measure import Run
from minivllm.lab.peers.protocol import Answer, Job

if TYPE_CHECKING:
    from minivllm.lab.contestants import Progress
    from minivllm.lab.workload import Workload

# The child's environment need not have this package: its folder goes last in the search path, so
# that nothing beside it hides what that environment has.
START = (
    "import importlib, sys; sys.path.append(sys.argv[2]); "
    "importlib.import_module(sys.argv[1]).main()"
)


def command_of(python: str | Path, module: str) -> list[str]:
    """The command that runs `main()` of one of this package's modules under another Python."""
    return [str(python), "-c", START, module, str(Path(minivllm.__file__).parent.parent)]


class Peer:
    """An engine in a child process: a contestant whose weights stay loaded from run to run.

    Raises ValueError, one line, when the child ends, answers what is no answer, or reports an
    error; the last line of its standard error is quoted.
    """

    def __init__(
        self, name: str, command: Sequence[str], environment: dict[str, str], folder: Path, job: Job
    ) -> None:
        self.name = name
        self.max_num_seqs = job.max_num_seqs
        self._busy = True
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            encoding="utf-8", cwd=folder, env={**os.environ, **environment},
            start_new_session=True,
        )  # fmt: skip
        try:
            self.facts = self._ask(asdict(job), "facts")["facts"]
        except BaseException:
            self.close()
            raise

    def run(self, workload: Workload, progress: Progress) -> Run:
        """The workload once, all requests at once, from an empty cache."""
        requests = [
            {"prompt_token_ids": item.prompt_token_ids, "max_tokens": item.max_tokens}
            for item in workload.items
        ]
        fields = self._ask({"requests": requests}, "seconds")
        try:
            answer = Answer(**fields)
        except TypeError as error:
            raise ValueError(f"the engine {self.name} answered no run: {error}") from None
        self._check_lengths(workload, answer)
        progress(workload.num_tokens)
        facts = dict(self.facts)
        if answer.num_cached_tokens is not None:
            facts["cached_tokens"] = answer.num_cached_tokens
        return Run(
            answer.seconds, answer.num_steps, answer.token_times, facts, answer.token_ids,
            answer.peak_memory_bytes,
        )  # fmt: skip

    def close(self) -> None:
        """End the child and all it started; a child at work is not waited for."""
        process = self._process
        try:
            if not self._busy:
                process.stdin.close()
                process.wait(timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            pass
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
            process.wait()
            process.stdout.close()
            self._log.close()

    def _ask(self, message: dict[str, Any], wanted: str) -> dict[str, Any]:
        self._busy = True
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            status = self._process.wait()
            raise ValueError(f"the engine {self.name} ended with status {status}{self._last_words}")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if isinstance(answer, dict) and "error" in answer:
            raise ValueError(f"the engine {self.name} failed: {answer['error']}")
        if not isinstance(answer, dict) or wanted not in answer:
            raise ValueError(f"the engine {self.name} answered {line.strip()[:80]!r}, no answer")
        self._busy = False
        return answer

    @property
    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().splitlines() if line.strip()]
        return f": {lines[-1][:300]}" if lines else ", without a word"

    def _check_lengths(self, workload: Workload, answer: Answer) -> None:
        wanted = [item.max_tokens for item in workload.items]
        for what, lists in (("times", answer.token_times), ("ids", answer.token_ids)):
            if len(lists) != len(wanted):
                raise ValueError(
                    f"the engine {self.name} gave token {what} for {len(lists)} requests of "
                    f"{len(wanted)}"
                )
            for index, (got, most) in enumerate(zip(lists, wanted, strict=True)):
                if len(got) != most:
                    raise ValueError(
                        f"the engine {self.name} gave {len(got)} token {what} for request {index}, "
                        f"{most} were asked for"
                    )
