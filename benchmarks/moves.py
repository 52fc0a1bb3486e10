"""What a model says in the place of `orderly`, with people whom it has never met: the right move, the right thing?

    echo-env run --policy orderly --split dev --limit 40 --out runs/told
    python benchmarks/moves.py runs/told/orderly FOLDER...

`orderly` talked with them. In front of each of its messages the model draws one reply, and of the replies that are made
of the bank's phrases it is counted how often the first and the second are of the move that `orderly` made, how many
things taken up stand in the message, how many phrases were said before, and what became of the threads.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from echo_env.agents.embedded.listening import points
from echo_env.agents.embedded.orderly import InOrder, told
from echo_env.agents.embedded.skilled import phrases
from echo_env.agents.policy import local_model
from echo_env.record import RunFolder
from echo_env.roles import Observation
from echo_env.types import Message

AT_ONCE = 64
_SLOT = {"it": r"(?P<it>.+?)", "earlier": r"(?P<earlier>.+?)", "feeling": r"\w+", "Feeling": r"\w+"}


class Said(NamedTuple):
    """A phrase of the bank in a reply."""

    move: str
    phrase: str
    it: str
    earlier: str


@lru_cache(maxsize=1)
def bank() -> list[tuple[str, str, re.Pattern[str]]]:
    """Return all phrases with their moves, as patterns."""
    found = []
    for move, own in phrases().items():
        for phrase in own:
            parts = re.split(r"\{(\w+)\}", phrase)
            slots: set[str] = set()
            pattern = ""
            for k, part in enumerate(parts):
                if k % 2 == 0:
                    pattern += re.escape(part)
                elif part in slots and part in ("it", "earlier"):
                    pattern += f"(?P={part})"
                else:
                    pattern += _SLOT[part]
                    slots.add(part)
            found.append((move, phrase, re.compile(pattern + r"(?:\s|$)", re.IGNORECASE)))
    return found


@lru_cache(maxsize=1 << 14)
def parsed(reply: str) -> list[Said] | None:
    """Return the phrases that a reply is made of, in order; None where it is made of anything else."""
    said: list[Said] = []
    rest = reply
    while rest:
        hits = [(m.end(), move, phrase, m) for move, phrase, p in bank() if (m := p.match(rest))]
        if not hits:
            return None
        end, move, phrase, m = min(hits, key=lambda hit: hit[0])
        groups = m.groupdict()
        said.append(Said(move, phrase, groups.get("it") or "", groups.get("earlier") or ""))
        rest = rest[end:]
    return said


def asked(run: Path) -> Iterator[Observation]:
    """Yield what was to be answered, from the third message on."""
    for episode in RunFolder(run).episodes():
        messages: list[Message] = []
        for number, turn in enumerate(episode.turns):
            messages.append(Message(role="user", text=turn.user))
            if number >= 2:
                yield Observation(tuple(messages))
            messages.append(Message(role="companion", text=turn.reply))


def measure(folder: Path, observations: Sequence[Observation], temperature: float) -> str:
    """Return the figures of a model as text."""
    model = local_model(folder, temperature=temperature, top_p=1.0, max_new_tokens=64, reuse_tokens=0)
    count: Counter[str] = Counter()
    for at in range(0, len(observations), AT_ONCE):
        some = observations[at : at + AT_ONCE]
        for observation, reply in zip(some, model.respond_batch(some), strict=True):
            count.update(_counted(observation, parsed(reply) or []))
    read = max(1, count["read"])
    two = max(1, count["two"])
    return (
        f"{len(observations)} replies, {count['read'] / len(observations):.0%} of the bank's phrases;  of these:"
        f" first move right {count['first'] / read:.0%}, second {count['second'] / two:.0%};"
        f" things in the message {count['in'] / max(1, count['things']):.0%},"
        f" of its story {count['points'] / max(1, count['things']):.0%};"
        f" phrases said before {count['again'] / max(1, count['phrases']):.0%};"
        f" threads {count['threads'] / read:.0%}, of things told {count['told'] / max(1, count['threads']):.0%}"
        + "".join(f"\n    {key} {count[key]}" for key in sorted(count) if " as " in key)
    )


def _counted(observation: Observation, said: list[Said]) -> Iterator[str]:
    if not said:
        return
    yield "read"
    before = [s.phrase for m in observation.messages[1::2] for s in parsed(m.text) or []]
    user, all_told = observation.user.lower(), " ".join(m.text for m in observation.messages[:-2:2]).lower()
    right = [answer.move for answer in told(InOrder.to_newest(observation))]
    if said[0].move == right[0]:
        yield "first"
    yield f"{right[0]} as {said[0].move}"
    if len(said) > 1 and len(right) > 1:
        yield "two"
        if said[1].move == right[1]:
            yield "second"
        yield f"{right[1]} as {said[1].move}"
    for s in said:
        yield "phrases"
        if s.phrase in before:
            yield "again"
        if s.it:
            yield "things"
            if _thing(s.it) in user:
                yield "in"
                if points(s.it):
                    yield "points"
        if s.move == "link":
            yield "threads"
            if _thing(s.earlier) in all_told:
                yield "told"


def _thing(noun: str) -> str:
    return re.sub(r"^(your|the|that|those|his|her|their) ", "", noun.strip("\u201c\u201d'").lower())


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="a recorded run of orderly")
    parser.add_argument("models", type=Path, nargs="+", help="model folders")
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--limit", type=int, default=400, help="messages, spread over the run")
    a = parser.parse_args()
    observations = list(asked(a.run))
    observations = observations[:: max(1, len(observations) // a.limit)]
    for model in a.models:
        print(f"{model}: {measure(model, observations, a.temperature)}", flush=True)


if __name__ == "__main__":
    main()
