"""How well a policy knows, with people whom it has never met, what kind of answer a message calls for.

    echo-env run --policy orderly --split dev --limit 40 --out runs/told
    python benchmarks/moves.py runs/told/orderly FOLDER...

`orderly` talked with them. Before each of its replies, what mass does a model give to the first tokens of each move's
phrases? For each move the area under the ROC curve of that mass against whether `orderly` began with it: 0.5 is chance.
A first token that phrases of several moves share counts for each in proportion.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from echo_env.agents.embedded.orderly import InOrder, told
from echo_env.agents.embedded.skilled import phrases
from echo_env.agents.loading import load_model, stop_tokens
from echo_env.record import RunFolder
from echo_env.roles import Observation
from echo_env.trainers.chat import ChatFormat
from echo_env.types import Message

LEAST = 10
"""Replies that begin with a move, for its figure to be told."""
FILLED = {"it": "the orchard", "feeling": "sad", "Feeling": "Sad", "earlier": "the orchard"}


def asked(run: Path) -> Iterator[Observation]:
    """Yield what was to be answered, from the third message on."""
    for episode in RunFolder(run).episodes():
        messages: list[Message] = []
        for number, turn in enumerate(episode.turns):
            messages.append(Message(role="user", text=turn.user))
            if number >= 2:
                yield Observation(tuple(messages))
            messages.append(Message(role="companion", text=turn.reply))


def openings(tokenizer: Any) -> tuple[list[str], torch.Tensor]:
    """Return the moves, and for each token how much of it opens each, [V, moves]."""
    first: dict[int, Counter[str]] = {}
    for move, bank in phrases().items():
        for phrase in bank:
            text = phrase.format(**FILLED)
            token = tokenizer(text[:1].upper() + text[1:]).input_ids[0]
            first.setdefault(token, Counter())[move] += 1
    moves = list(phrases())
    shares_VM = torch.zeros(len(tokenizer), len(moves))
    for token, counts in first.items():
        for move, number in counts.items():
            shares_VM[token, moves.index(move)] = number / counts.total()
    return moves, shares_VM


@torch.no_grad()
def measure(folder: Path, observations: list[Observation], exchanges: int) -> dict[str, float]:
    """Return the area under the curve by move."""
    from sklearn.metrics import roc_auc_score

    tokenizer, model = load_model(folder, "cpu", None)
    model = model.float().eval()
    layout = ChatFormat(tokenizer, stops=stop_tokens(model, tokenizer), system="")
    moves, shares_VM = openings(tokenizer)
    begun = [told(InOrder.to_newest(o))[0].move for o in observations]
    masses = []
    for o in observations:
        ids = layout.prompt(o.messages[1 - 2 * exchanges :])
        masses.append(model(torch.tensor([ids])).logits[0, -1].softmax(-1) @ shares_VM)
    mass_OM = torch.stack(masses)
    mass_OM = (mass_OM / mass_OM.sum(-1, keepdim=True)).numpy()
    counts = Counter(begun)
    return {
        move: float(roc_auc_score([own == move for own in begun], mass_OM[:, column]))
        for column, move in enumerate(moves)
        if LEAST <= counts[move] <= len(begun) - LEAST
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="a recorded run of orderly")
    parser.add_argument("models", type=Path, nargs="+", help="model folders")
    parser.add_argument("--exchanges", type=int, default=6, help="newest ones that a model reads")
    a = parser.parse_args()
    observations = list(asked(a.run))
    for model in a.models:
        found = measure(model, observations, a.exchanges)
        print(f"{model}: " + "  ".join(f"{move} {area:.2f}" for move, area in found.items()), flush=True)


if __name__ == "__main__":
    main()
