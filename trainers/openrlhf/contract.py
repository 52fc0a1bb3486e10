"""OpenRLHF's command line, held against OpenRLHF itself.

Its flags changed names in 0.11.0 and again after, and its README is wrong for 0.11.2. So a command is parsed with the
parser of the installed `openrlhf.cli.train_ppo_ray`, rebuilt from that file's source: importing it would take Ray,
vLLM, DeepSpeed and flash-attn. What the program asserts across flags comes here first, in words.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, NoReturn

from echo_env.errors import ConfigError

VERSION = "0.11.2"
MODULE = "openrlhf.cli.train_ppo_ray"
ESTIMATORS_OF_GROUPS = frozenset({"rloo", "reinforce_baseline", "group_norm", "dr_grpo"})
_TYPES: Mapping[str, Callable[[str], object]] = {"int": int, "float": float, "str": str}


def installed() -> Path | None:
    """Return the source of the installed program; None where OpenRLHF is not installed.

    Raises:
        ConfigError: Another version is.
    """
    try:
        found = distribution("openrlhf")
    except PackageNotFoundError:
        return None
    if found.version != VERSION:
        raise ConfigError(
            f"OpenRLHF {found.version} is installed; its flags are not those of {VERSION}",
            f"pip install --no-deps openrlhf=={VERSION}",
        )
    return Path(str(found.locate_file("openrlhf/cli/train_ppo_ray.py")))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"OpenRLHF {VERSION} does not take the command: {message}", "please report it")


def parser_of(source: str) -> argparse.ArgumentParser:
    """Rebuild the parser of the program from its source.

    Args:
        source: Of `openrlhf/cli/train_ppo_ray.py`.

    Raises:
        ConfigError: No option is found in it, or one that cannot be read.
    """
    parser = _Parser(prog=MODULE, allow_abbrev=False)
    for call, prefix in _options(ast.parse(source)):
        name = _literal(call.args[0], prefix)
        given = {k.arg: k.value for k in call.keywords if k.arg not in {None, "help"}}
        options: dict[str, Any] = {"default": argparse.SUPPRESS}  # asked is what is given, and whether it fits
        for key, value in given.items():
            if key == "type":
                options[key] = _TYPES[ast.unparse(value)]
            elif key != "default":
                options[str(key)] = _literal(value, prefix)
        parser.add_argument(str(name), **options)
    if len(parser._actions) < 2:
        raise ConfigError("no option was found in OpenRLHF's train_ppo_ray.py", f"is it {VERSION}?")
    return parser


def _options(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls that add an option, in order, with the value of the loop variable around them ("" for none)."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.For) and isinstance(node.iter, ast.Tuple):
            for value in ast.literal_eval(node.iter):
                yield from ((call, value) for statement in node.body for call, _ in _options(statement))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
            yield node, ""
        else:
            yield from _options(node)


def _literal(node: ast.expr, prefix: str) -> Any:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else prefix for v in node.values)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ConfigError(f"an option of OpenRLHF cannot be read: {ast.unparse(node)}", f"is it {VERSION}?") from None


def parsed(argv: Sequence[str], program: Path) -> dict[str, Any]:
    """Parse a command's flags with the program's own parser, and return what they give, by name without dashes.

    Args:
        argv: Flags and values.
        program: Source of `train_ppo_ray`.

    Raises:
        ConfigError: A flag is unknown, or a value has the wrong count or type or is no choice.
    """
    return vars(parser_of(program.read_text(encoding="utf-8")).parse_args(list(argv)))


def check_across(flags: Mapping[str, Any]) -> None:
    """Check what the program asserts across flags, hours later and on a cluster.

    Its source, `train_ppo_ray.py` of 0.11.2: the placement of reference and engines (43, 57), groups of one (657),
    packing without engines (705), sleep and partial rollouts (715, 718), evaluation without rewards (721), oversampling
    (741), filtering (747 to 753), batches for every process (757). `models/loss.py` 156 to 172: dual clip, correction.
    `trainer/ppo_utils/length_penalty.py` 37: the overlong buffer. Vision and critic are not ours to set.

    Args:
        flags: Name without dashes -> value, as `parsed` gives them; what is not there has OpenRLHF's default.

    Raises:
        ConfigError: One does not hold.
    """
    for broken, message, hint in _rules(flags):
        if broken:
            raise ConfigError(message, hint)


def _rules(flags: Mapping[str, Any]) -> Iterator[tuple[bool, str, str]]:
    """Yield (whether it is broken, message, hint)."""

    def of(name: str, default: Any) -> Any:
        value = flags.get(name)
        return default if value is None else value

    processes = of("actor.num_nodes", 1) * of("actor.num_gpus_per_node", 8)
    references = of("ref.num_nodes", 1) * of("ref.num_gpus_per_node", 8)
    engines = of("vllm.num_engines", 0) * of("vllm.tensor_parallel_size", 1)
    samples, prompts = of("rollout.n_samples_per_prompt", 1), of("rollout.batch_size", 1024)
    together, ahead = of("train.colocate_all", False), of("train.async_enable", False)
    rewarded = bool(flags.get("reward.remote_url") or flags.get("train.agent_func_path"))
    kl, estimator = of("algo.kl.init_coef", 0.01), of("algo.advantage.estimator", "gae")
    yield (
        kl > 0 and (together or of("train.colocate_actor_ref", False)) and processes != references,
        f"policy ({processes} GPUs) and reference ({references}) share GPUs, so they need the same number",
        "engine.nodes and engine.gpus place both",
    )
    yield (
        together and not ahead and engines > 0 and processes != engines,
        f"with colocate the policy's GPUs ({processes}) are those of vLLM's engines ({engines})",
        "engine.nodes x engine.gpus must equal engine.vllm_engines x engine.tensor_parallel",
    )
    yield (not engines, "there is no vLLM engine to sample with", "engine.vllm_engines=1 at least")
    yield (
        estimator in ESTIMATORS_OF_GROUPS and samples < 2,
        f"estimator '{estimator}' compares siblings, and there is one sample a prompt",
        "algo.group=2 at least",
    )
    yield (
        ahead and of("vllm.enable_sleep", False) and together,
        "engines cannot sleep while they sample ahead of training",
        "engine.colocate=false, or engine.ahead=0",
    )
    yield (
        of("train.partial_rollout_enable", False) and not ahead,
        "partial rollouts go with sampling ahead of training",
        "engine.ahead=1",
    )
    yield (bool(flags.get("eval.dataset")) and not rewarded, "evaluation needs an agent file or a reward", "")
    yield (
        of("rollout.vllm_generate_batch_size", prompts) > prompts and not ahead,
        "sampling more prompts than an update takes goes with sampling ahead of training",
        "engine.ahead=1",
    )
    low, high = of("algo.dynamic_filtering_range", (0, 1))
    filtered = of("algo.dynamic_filtering_enable", False)
    yield (filtered and not low < high, f"the filter's range is empty: {low} to {high}", "")
    yield (filtered and not rewarded, "filtering needs an agent file or a reward", "")
    yield (filtered and samples < 2, "a group of one has no spread to filter by", "algo.group=2 at least")
    shards = of("ds.ring_attn_size", 1) * of("ds.tensor_parallel_size", 1)
    batches = samples * prompts // of("rollout.micro_batch_size", 1)
    yield (
        batches < processes // shards,
        f"{processes // shards} training processes share {batches} micro-batches of rollouts, and each needs one",
        "raise groups, or lower engine.rollout_batch",
    )
    rows = of("train.batch_size", 128)
    steps = of("train.micro_batch_size", 1) * (processes // shards)
    yield (
        rows % steps != 0,
        f"an optimiser step's {rows} samples do not divide into {processes // shards} processes of"
        f" {of('train.micro_batch_size', 1)} at a time",
        "change groups, algo.group, engine.gpus or engine.train_batch",
    )
    dual = flags.get("actor.dual_clip")
    yield (dual is not None and dual <= 1, f"a dual clip is above 1, got {dual}", "algo.objective.clip.dual=null")
    yield from _correction(of)
    buffer, longest = flags.get("reward.overlong_buffer_len"), of("rollout.max_new_tokens", of("data.max_len", 2048))
    yield (buffer is not None and buffer > longest, f"the overlong buffer {buffer} is longer than {longest} tokens", "")


def _correction(of: Callable[[str, Any], Any]) -> Iterator[tuple[bool, str, str]]:
    level = of("algo.advantage.is_correction_level", "off")
    mode, gating = of("algo.advantage.is_correction_mode", "mask"), of("algo.advantage.is_correction_gating", "ratio")
    bounds = of("algo.advantage.is_correction_threshold", [0.5, 5.0])
    yield (len(bounds) not in (1, 2), "the correction takes HIGH, or LOW and HIGH", "")
    yield (
        mode == "clip" and (level == "seq" or gating != "ratio"),
        "the correction's mode 'clip' takes level 'token' and gating 'ratio'",
        "algo.objective.correction.mode=mask",
    )
    yield (
        level != "off" and gating != "ratio" and len(bounds) == 2 and bounds[0] > 0,
        f"the correction's gate '{gating}' has an upper bound only",
        "algo.objective.correction.low=0",
    )
