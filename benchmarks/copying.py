"""How well a policy takes up the words of people whom it has never met.

    echo-env run --policy skilled --split dev --limit 60 --out runs/told
    python benchmarks/copying.py runs/told/skilled FOLDER...

`skilled` talked with them, and each model reads these talks, an exchange at a time. Of `skilled`'s words, those that
the person has just used and that are none of the commonest: what probability does the model give them (nats), and how
often is it more than one half? The loss of all of `skilled`'s words stands beside.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from echo_env.agents.loading import load_model, stop_tokens
from echo_env.record import RunFolder
from echo_env.trainers.chat import ChatFormat
from echo_env.trainers.logits import Head
from echo_env.trainers.sft import batch_of
from echo_env.trainers.sftdata import Example
from echo_env.types import Message

SHORTEST = 4
"""Letters of a word that counts as taken up; shorter ones are mostly grammar."""
COMMONEST = 1200
"""Tokens that do not count: the first of the tokenizer's merges."""
AT_ONCE = 8


@dataclass
class Found:
    """Sums over a model's tokens."""

    words: int = 0
    loss: float = 0.0
    copied: int = 0
    copied_loss: float = 0.0
    sure: int = 0

    def line(self) -> str:
        """Return the figures as text."""
        return (
            f"loss {self.loss / self.words:.2f}  words taken up: {self.copied}, {self.copied_loss / self.copied:.2f}"
            f" nats, {self.sure / self.copied:.0%} above one half"
        )


def exchanges(run: Path, number: int) -> list[tuple[Message, Message]]:
    """Draw exchanges from a recorded run, the same each time."""
    turns = [turn for episode in RunFolder(run).episodes() for turn in episode.turns]
    drawn = random.Random(0).sample(turns, min(number, len(turns)))
    return [(Message(role="user", text=t.user), Message(role="companion", text=t.reply)) for t in drawn]


@torch.no_grad()
def measure(folder: Path, talks: Sequence[tuple[Message, Message]]) -> Found:
    """Read the exchanges with a model."""
    tokenizer, model = load_model(folder, "cpu", None)
    head, found = Head(model.float().eval()), Found()
    layout = ChatFormat(tokenizer, stops=stop_tokens(model, tokenizer), system="")
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    plain = [name.lstrip("\u0120") for name in names]
    counted = {k for k, n in enumerate(plain) if k > COMMONEST and len(n) >= SHORTEST and n.isalpha()}

    def laid(exchange: tuple[Message, Message]) -> Example:
        ids, mask = layout.conversation(exchange)
        return Example("", tuple(ids), tuple(mask), False)

    examples = [laid(exchange) for exchange in talks]
    for at in range(0, len(examples), AT_ONCE):
        some = examples[at : at + AT_ONCE]
        batch = batch_of(some)
        logprobs_BT = head.scores(batch.ids_BT, batch.policy_BT).logprobs_BT.tolist()
        for e, logprobs_T in zip(some, logprobs_BT, strict=True):
            told = {token for token, own in zip(e.ids, e.mask, strict=True) if not own}
            for token, own, logprob in zip(e.ids, e.mask, logprobs_T, strict=False):
                if own:
                    found.words += 1
                    found.loss -= logprob
                    if token in told & counted:
                        found.copied += 1
                        found.copied_loss -= logprob
                        found.sure += logprob > math.log(0.5)
    return found


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="a recorded run of skilled")
    parser.add_argument("models", type=Path, nargs="+", help="model folders")
    parser.add_argument("--exchanges", type=int, default=400)
    a = parser.parse_args()
    talks = exchanges(a.run, a.exchanges)
    for model in a.models:
        print(f"{model}: {measure(model, talks).line()}", flush=True)


if __name__ == "__main__":
    main()
