"""A real vLLM server with SmolLM2-135M on this machine's CPU, on loopback, for the tests marked `llm_server`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

VENV = Path(__file__).resolve().parents[1] / ".venv-vllm"
NAME = "smollm2-135m"
START = 300.0
"""Seconds that the server may take to load and compile."""


class VllmServer:
    """Started on demand, stopped for good."""

    def __init__(self, model: Path, log: Path) -> None:
        self.log = log
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        command = [
            str(VENV / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
            "--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32",
            "--enforce-eager", "--max-model-len", "8192", "--max-num-seqs", "8", "--enable-auto-tool-choice",
            "--tool-call-parser", "hermes",
            # a prompt that is read in pieces ends the engine on a CPU, where the request has a seed
            "--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192",
            # a small model that may write space between the parts of a form writes little else
            "--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}',
        ]  # fmt: skip
        libraries = sorted((VENV / "lib").glob("libiomp5.so"))
        settings = {
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": "0-1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "LD_PRELOAD": ":".join(map(str, libraries)),
        }
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "PYTHON"))}
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                command, stdout=file, stderr=file, env={**inherited, **settings}, start_new_session=True
            )
        self._wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def name(self) -> str:
        """What stands behind `llm:`."""
        return f"hosted_vllm/{NAME}@{self.url}"

    def _wait(self) -> None:
        until = time.monotonic() + START
        while time.monotonic() < until:
            if self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        self.stop()
        raise RuntimeError(f"the server did not come up:\n{self.log.read_text(errors='replace')[-3000:]}")

    def stop(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
