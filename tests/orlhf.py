"""OpenRLHF's own maths, imported without what it runs on.

`make build/openrlhf/ready` puts OpenRLHF 0.11.2 into a folder of its own, without dependencies. Its losses and
estimators are plain torch; but their modules also import flash-attn, DeepSpeed, Ray, vLLM and more at the top, for
code that is not called here. While they are imported, an empty module stands in for each of those. Afterwards
everything is as before: no stand-in and no OpenRLHF is left for others to import.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import torch

FOLDER = Path(__file__).resolve().parents[1] / "build" / "openrlhf"
ABSENT = {
    "accelerate", "aiohttp", "bitsandbytes", "datasets", "deepspeed", "flash_attn", "packaging", "peft",
    "pylatexenc", "ray", "torchdata", "tqdm", "transformers", "vllm", "wandb",
}  # fmt: skip


class Absent(ModuleType):
    """A module from which any name can be imported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Unusable,), {})


class Unusable:
    """May be subclassed and may decorate, which happens at import; any use of the result is an error."""

    def __init__(self, *args: object, **options: object) -> None:
        pass

    def __call__(self, decorated: object) -> object:
        return decorated

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError("a stand-in for an import: OpenRLHF's maths must not use it")


class StandIns(MetaPathFinder, Loader):
    """Finds OpenRLHF in its folder, and stand-ins for what it imports."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if name == "openrlhf":
            return PathFinder.find_spec(name, [str(FOLDER)])  # not on sys.path: the wheel brings a package `tests`
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in ABSENT else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@contextmanager
def stood_in() -> Iterator[None]:
    """Import under stand-ins, and put everything back."""

    def ours() -> dict[str, ModuleType]:
        return {n: m for n, m in sys.modules.items() if n.partition(".")[0] in ABSENT | {"openrlhf"}}

    before, finder = ours(), StandIns()
    for name in before:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in ours():
            del sys.modules[name]
        sys.modules.update(before)


class OpenRLHF(NamedTuple):
    """Its modules that we compare with."""

    loss: Any
    utils: Any
    maker: Any
    length_penalty: Any
    agent: Any
    engine: Any
    samples: Any
    prompts: Any
    ours: Any
    """`echo_env.trainers.openrlhf.agent`, on top of them."""


MODULES = (
    "models.loss", "models.utils", "trainer.ppo_utils.experience_maker", "trainer.ppo_utils.length_penalty",
    "utils.agent", "trainer.ray.vllm_engine", "trainer.ppo_utils.samples_generator", "datasets.prompts_dataset",
)  # fmt: skip
AGENT = "echo_env.trainers.openrlhf.agent"


def load() -> OpenRLHF:
    """Import them. What our agent module needs of its own is imported before, without stand-ins."""
    for name in ("rows", "talks"):
        importlib.import_module(f"echo_env.trainers.openrlhf.{name}")
    for name in ("replies", "rollouts"):
        importlib.import_module(f"echo_env.trainers.{name}")
    sys.modules.pop(AGENT, None)
    with stood_in(), mock.patch.object(torch, "compile", lambda function: function):
        theirs = [importlib.import_module(f"openrlhf.{name}") for name in MODULES]
        return OpenRLHF(*theirs, importlib.import_module(AGENT))
