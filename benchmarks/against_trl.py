"""One update of our engine (`trainers/sampler.py`, `trainers/learner.py`) against one of TRL's GRPOTrainer.

    pip install trl==1.16.0
    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/against_trl.py --model tiny
    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/against_trl.py --model smollm2-135m

Same weights (fp32), prompts, group, lengths of prompt and reply (nobody stops early), rows in a forward pass, loss
(DAPO's clips, mean over tokens, no KL), one optimiser step (AdamW, fused) a rollout, no gradient checkpointing. Each
side lives in a process of its own and they take turns, update by update, in alternating order, so that a busy machine
slows down both. `rollout` is all until the loss (generation, rewards, advantages), `train` the forward and backward
passes and the optimiser's step. Rates are medians, of the replies' tokens. `peak` is the most memory that the process
ever held; `updates take` is what of it came on top of libraries and weights.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

from echo_env.agents.smollm2 import smollm2_folder
from echo_env.errors import ConfigError

TRL = "1.16.0"
SIDES = ("ours", "trl")
WORDS = {"tiny": 4096, "tiny-49k": 49_152}
"""Vocabularies of the models made here; that of the second is as large as SmolLM2's."""
TEXT = (
    "I keep going over that phone call, and what I should have said before she hung up. At work nobody knows, I answer"
    " mails until late so that I need not think about it, and then the flat is quiet and it all starts again. "
)


def tiny_folder(folder: Path, size: int) -> Path:
    """Make a Llama of four layers with random weights, and a tokenizer of so many whole words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {"<end>": 0} | {f"w{k}": k for k in range(1, size)}
    core = Tokenizer(models.WordLevel(words, unk_token="<end>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", pad_token="<end>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"  # a policy has to have one
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size, hidden_size=192, intermediate_size=512, num_hidden_layers=4, num_attention_heads=6,
        tie_word_embeddings=True, max_position_embeddings=2048, eos_token_id=0, pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def prompts_of(tokenizer: Any, count: int, length: int) -> list[str]:
    """Return different texts of exactly so many tokens."""
    own = len(tokenizer) if "w1" in tokenizer.get_vocab() else 0
    found = []
    for k in range(count):
        text = " ".join(f"w{(7 * k + j) % (own - 1) + 1}" for j in range(length)) if own else f"{k}: {TEXT * 40}"
        ids = tokenizer(text, add_special_tokens=False)["input_ids"][:length]
        found.append(tokenizer.decode(ids))
        if tokenizer(found[-1])["input_ids"] != ids:
            raise ConfigError(f"a text of {length} tokens does not read as {length} tokens again", "another --prompt")
    return found


def version_of(package: str) -> str:
    """Return the installed version, "" where there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def reward(ids: list[int]) -> float:
    """Return something that differs between replies: the share of even ids."""
    return sum(i % 2 == 0 for i in ids) / len(ids)


def peak() -> float:
    """Return the most memory that this process ever held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def held() -> float:
    """Return the memory that this process holds now, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def tell(**figures: float) -> None:
    """Answer the parent."""
    sys.__stdout__.write(json.dumps(figures) + "\n")
    sys.__stdout__.flush()


def wait() -> bool:
    """Wait for the parent's word; False ends it."""
    return sys.stdin.readline().strip() == "go"


def ours(o: argparse.Namespace) -> None:
    """Take updates with our engine."""
    import torch

    from echo_env.agents.loading import load_model
    from echo_env.trainers.job import Algorithm, Optimiser
    from echo_env.trainers.learner import Learner
    from echo_env.trainers.losses import DAPO
    from echo_env.trainers.sampler import Sampler
    from echo_env.trainers.trajectory import Trajectory, grown

    torch.set_num_threads(o.threads)
    tokenizer, model = load_model(Path(o.folder), "cpu", None)
    texts = prompts_of(tokenizer, o.rows // o.group, o.prompt)
    algo = Algorithm(name="grpo", group=o.group, objective=DAPO)
    micro_tokens = o.micro * (o.prompt + o.reply)
    learner = Learner(model, tokenizer, algo, Optimiser(lr=1e-6, betas=(0.9, 0.999)), micro_tokens=micro_tokens)
    sampler = Sampler(model, frozenset())
    tell(start=held())
    update = 0
    while wait():
        update += 1
        began = time.perf_counter()
        asked = [tokenizer(t)["input_ids"] for t in texts for _ in range(o.group)]
        drawn = sampler.sample(asked, o.reply, [1000 * update + k for k in range(o.rows)])
        trajectories = []
        for k, d in enumerate(drawn):
            assert len(d.prompt) == o.prompt
            assert len(d.ids) == o.reply
            worth, sequence = reward(d.ids), grown(None, d.prompt, d.ids, d.logprobs, "length")
            trajectories.append(
                Trajectory(
                    group=str(k // o.group), sequences=(sequence,), rewards=(worth,), verdict=worth, score=worth,
                    ended="terminated", policy_version=learner.done,
                )
            )  # fmt: skip
        rolled = time.perf_counter()
        figures = learner.update(trajectories)
        assert figures["tokens"] == o.rows * o.reply, figures["tokens"]
        tell(rollout=rolled - began, train=time.perf_counter() - rolled, peak=peak())


def trl(o: argparse.Namespace) -> None:
    """Take updates with TRL."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(o.threads)
    tokenizer = AutoTokenizer.from_pretrained(o.folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(o.folder, dtype=torch.float32)
    texts = prompts_of(tokenizer, o.rows // o.group, o.prompt)
    rollouts: list[float] = []

    class Timed(GRPOTrainer):  # type: ignore[misc]
        """Tells apart what belongs to the rollout, and checks the lengths."""

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            began = time.perf_counter()
            out = super()._generate_and_score_completions(inputs)
            rollouts.append(time.perf_counter() - began)
            assert out["prompt_ids"].shape == (o.rows, o.prompt), out["prompt_ids"].shape
            assert out["completion_ids"].shape == (o.rows, o.reply), out["completion_ids"].shape
            assert int(out["completion_mask"].sum()) == o.rows * o.reply
            return out

    class Turns(TrainerCallback):  # type: ignore[misc]
        """Waits for the parent before each update."""

        began = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if not wait():
                os._exit(0)  # in the middle of `train`, which has no other way out without saving
            rollouts.clear()
            self.began = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            whole = time.perf_counter() - self.began
            tell(rollout=sum(rollouts), train=whole - sum(rollouts), peak=peak())

    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, max_steps=10_000, report_to=[], save_strategy="no",
        logging_steps=10_000, disable_tqdm=True, learning_rate=1e-6, lr_scheduler_type="constant", beta=0.0,
        per_device_train_batch_size=o.micro, gradient_accumulation_steps=o.rows // o.micro, num_generations=o.group,
        num_iterations=1, max_completion_length=o.reply, generation_kwargs={"min_new_tokens": o.reply},
        loss_type="dapo", epsilon=0.2, epsilon_high=0.28, temperature=1.0, top_p=1.0, gradient_checkpointing=False,
        optim="adamw_torch_fused", dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Timed(
        model=model,
        reward_funcs=lambda completion_ids, **_: [reward(ids) for ids in completion_ids],
        args=config,
        train_dataset=Dataset.from_list([{"prompt": t} for t in texts]),
        processing_class=tokenizer,
        callbacks=[Turns()],
    )
    tell(start=held())
    trainer.train()


class Side:
    """A process that takes one update at a time."""

    def __init__(self, name: str, words: list[str]) -> None:
        self.name = name
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (a pipe that nobody reads would stop the process)
        self.process = subprocess.Popen(
            [sys.executable, __file__, *words, "--side", name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env=os.environ | {"TRL_EXPERIMENTAL_SILENCE": "1", "WANDB_DISABLED": "true", "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        self.start = self._answer()["start"]
        self.updates: list[dict[str, float]] = []

    def update(self) -> None:
        """Take one."""
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.updates.append(self._answer())

    def end(self) -> None:
        """Let the process end."""
        self.process.communicate("stop\n")

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            sys.exit(f"{self.name} came to nothing:\n{self.log.read()[-3000:]}")
        found: dict[str, float] = json.loads(line)
        return found

    def median(self, seconds: Callable[[dict[str, float]], float]) -> float:
        """Return a median over the updates."""
        return median(seconds(u) for u in self.updates[1:])  # the first one warms up


def compare(o: argparse.Namespace, words: list[str]) -> bool:
    """Let both take turns, print their figures side by side, and return whether ours are no worse."""
    sides = [Side(name, words) for name in SIDES]
    for k in range(o.updates + 1):
        for side in sides if k % 2 else sides[::-1]:
            side.update()
            sys.stderr.write(f"update {k} of {o.updates}: {side.name} {side.updates[-1]}\n")
    for side in sides:
        side.end()
    tokens = o.rows * o.reply
    print(f"{o.model}: {o.rows} rows of {o.prompt} + {o.reply} tokens, {o.micro} at once; {o.updates} updates")
    print(f"{'':28}{'ours':>10}{'TRL':>10}{'ratio':>8}")
    rows: list[tuple[str, Callable[[Side], float]]] = [
        ("rollout, tokens/s", lambda s: tokens / s.median(lambda u: u["rollout"])),
        ("train, tokens/s", lambda s: tokens / s.median(lambda u: u["train"])),
        ("both, tokens/s", lambda s: tokens / s.median(lambda u: u["rollout"] + u["train"])),
        ("peak memory, MB", lambda s: s.updates[-1]["peak"]),
        ("  updates take, MB", lambda s: s.updates[-1]["peak"] - s.start),
    ]
    ratios = {}
    for name, of in rows:
        one, other = map(of, sides)
        ratios[name.strip()] = one / other
        print(f"{name:28}{one:>10,.1f}{other:>10,.1f}{one / other:>8.2f}")
    fast = min(ratios["train, tokens/s"], ratios["both, tokens/s"])
    big = max(ratios["peak memory, MB"], ratios["updates take, MB"])
    met = fast >= 1 >= big
    print(f"tokens/s at least 1.00: {fast:.2f}; memory at most 1.00: {big:.2f}; {'met' if met else 'MISSED'}")
    return met


def options() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="tiny, tiny-49k, smollm2-135m or a folder")
    parser.add_argument("--rows", type=int, default=8, help="replies in an update")
    parser.add_argument("--group", type=int, default=4, help="replies to one prompt")
    parser.add_argument("--micro", type=int, default=4, help="rows in one forward pass")
    parser.add_argument("--prompt", type=int, default=192, help="tokens")
    parser.add_argument("--reply", type=int, default=48, help="tokens")
    parser.add_argument("--updates", type=int, default=5, help="of each side, after one that warms up")
    parser.add_argument("--threads", type=int, default=1, help="torch's, of each side")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    return parser


def main() -> None:
    """Run one side, or both against each other."""
    o = options().parse_args()
    if o.side:
        sys.stdout = sys.stderr  # what libraries print is no answer
        (ours if o.side == "ours" else trl)(o)
        return
    if version_of("trl") != TRL:
        sys.exit(f"this compares with TRL {TRL}:  pip install trl=={TRL}")
    with tempfile.TemporaryDirectory() as folder:
        if o.model in WORDS:
            o.folder = str(tiny_folder(Path(folder), WORDS[o.model]))
        else:
            o.folder = str(smollm2_folder() if o.model == "smollm2-135m" else o.model)
        numbers = [f"--{name}={getattr(o, name)}" for name in ("rows", "group", "micro", "prompt", "reply", "threads")]
        sys.exit(not compare(o, [f"--folder={o.folder}", *numbers]))


if __name__ == "__main__":
    main()
