"""Sampled tokens a second of the rollouts' sampler, against a loop of transformers' `generate` over conversations.

    OMP_WAIT_POLICY=passive python benchmarks/rollouts.py --threads 1 [--cpu] [--model FOLDER | --tiny]

Both draw at temperature 1 the same number of tokens for each of the same conversations, several turns long, prompts
read included, with no early stop; the user's messages are the same ids in both. The sampler draws a turn of all
conversations at once, keeps log-probabilities, and remembers what it has read. The loop answers one conversation after
the other and reads each prompt from the start, as it must. Every repeat times both, side by side, since a shared
machine is not equally fast from one minute to the next; the table has the medians and the median of the ratios.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from echo_env.agents.attention import share_heads
from echo_env.agents.loading import load_model
from echo_env.agents.smollm2 import smollm2_folder
from echo_env.trainers.sampler import Sampler

TINY = {"vocab_size": 4096, "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4}


def tiny() -> Any:
    """Return a small model with random weights, of the size that is trained here from the start."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**TINY, num_attention_heads=6, num_key_value_heads=2, tie_word_embeddings=True)
    model = LlamaForCausalLM(config).eval()
    share_heads(model)
    return model


def ids(rng: random.Random, length: int) -> list[int]:
    """Return some ids, as a user's message or an opening."""
    return [rng.randrange(100, 4000) for _ in range(length)]


def sampled(model: Any, batch: int, args: argparse.Namespace) -> None:
    """Play the turns of all conversations together."""
    rng, sampler = random.Random(0), Sampler(model, frozenset())
    prompts = [ids(rng, args.opening) for _ in range(batch)]
    for turn in range(args.turns):
        said = sampler.sample(prompts, args.new_tokens, [batch * turn + b for b in range(batch)], list(range(batch)))
        prompts = [[*s.prompt, *s.ids, *ids(rng, args.user)] for s in said]


def looped(model: Any, conversations: int, args: argparse.Namespace) -> None:
    """Play the turns of one conversation after the other by `generate`."""
    rng, new = random.Random(0), args.new_tokens
    for _ in range(conversations):
        prompt = ids(rng, args.opening)
        for _ in range(args.turns):
            read = torch.tensor([prompt], device=model.device)
            out = model.generate(
                read,
                attention_mask=torch.ones_like(read),
                do_sample=True,
                top_k=0,
                top_p=1.0,
                temperature=1.0,
                min_new_tokens=new,
                max_new_tokens=new,
                pad_token_id=0,
            )
            prompt = [*out[0].tolist(), *ids(rng, args.user)]


def rate(tokens: int, work: Callable[[], None], clock: Callable[[], float]) -> float:
    """Return sampled tokens a second."""
    start = clock()
    work()
    return tokens / (clock() - start)


def row(model: Any, batch: int, args: argparse.Namespace) -> str:
    """Return one line of the table."""
    clock = time.process_time if args.cpu else time.perf_counter
    tokens, few = args.turns * args.new_tokens, min(batch, args.single)
    loops, batches = [], []
    for _ in range(args.repeats):
        loops.append(rate(few * tokens, lambda: looped(model, few, args), clock))
        batches.append(rate(batch * tokens, lambda: sampled(model, batch, args), clock))
    ratio = median(b / a for a, b in zip(loops, batches, strict=True))
    return f"{batch:>5} {median(loops):>10.1f} {median(batches):>10.1f} {ratio:>7.2f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder; SmolLM2-135M where there is none")
    parser.add_argument("--tiny", action="store_true", help="a small model with random weights")
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--opening", type=int, default=120, help="tokens before the first reply")
    parser.add_argument("--user", type=int, default=30, help="tokens between two replies")
    parser.add_argument("--new-tokens", type=int, default=40)
    parser.add_argument("--single", type=int, default=2, help="conversations that the loop is timed on")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="processor time, not wall time: for a shared machine")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = tiny() if args.tiny else load_model(args.model or smollm2_folder(), "cpu", args.threads)[1]
    looped(model, 1, argparse.Namespace(**{**vars(args), "turns": 1, "new_tokens": 2}))
    print(f"{args.turns} turns of {args.new_tokens} tokens, {args.threads} thread(s), tokens/{'CPU ' * args.cpu}s")
    print(f"{'batch':>5} {'generate':>10} {'sampler':>10} {'x':>7}", flush=True)
    for batch in args.batch:
        print(row(model, batch, args), flush=True)


if __name__ == "__main__":
    main()
