"""How well the rubric's reader tells acts, on phrases by another hand.

    python benchmarks/acts.py [--part working|test|all] [--judge second]

The phrases are those of the reference companion (`sim_profiles/voices/companion_en.yaml`), written without sight of the
rubric. Each kind of phrase performs one act, or none. Prints the share found and the share of others taken for it;
then, as one decision a phrase, the good act that it shows most, or none. Work on the reader looks at the working half
only; the test half is for the end.
"""

from __future__ import annotations

import argparse
import random
import re

from echo_env.agents.embedded.anchors import Reader, reader, spoken
from echo_env.agents.embedded.skilled import phrases

ACTS = {
    "validate": "A.prog.1.validates",
    "reframe": "C.prog.2.reframes",
    "affirm": "P.prog.1.affirms",
    "empower": "P.prog.2.empowers",
}
COLUMNS = {**ACTS, "advise": "P.prog.1.advises"}
"""Good acts that a phrase may be taken for; none of the companion's advises."""
PLAIN = ("reflect", "ask", "link", "lean")
"""Moves that perform none; those that name a feeling come close to validating it and are not counted for or against."""


JUDGES = {"embedded": ("epm_v1", "wordllama"), "second": ("epm_second_v1", "minilm")}
"""Judge -> its rubric and its encoder."""


def shown(read: Reader, phrase: str) -> dict[str, float]:
    """Return the acts that a phrase shows, its slots blanked as the judge blanks the story's words."""
    return read.shown(re.sub(r"\{[^}]*\}", "it", phrase), spoken(phrase))


def part_of(kind: str, bank: tuple[str, ...], part: str) -> list[str]:
    """Return a half of a move's phrases, or all of them."""
    order = list(bank)
    random.Random(f"acts:{kind}").shuffle(order)
    middle = (len(order) + 1) // 2
    return {"working": order[:middle], "test": order[middle:], "all": order}[part]


def top(found: dict[str, float]) -> str:
    """Return the good act with the highest score; "none" where none is shown."""
    good = {kind: found[act] for kind, act in COLUMNS.items() if act in found}
    return max(good, key=lambda kind: good[kind]) if good else "none"


def report_each(found: dict[str, list[dict[str, float]]]) -> None:
    """Print, act by act, the share found and the share of others taken for it."""
    print(f"{'act':10} {'found':>6} {'others':>7}   others by kind")
    alarms = []
    for kind, act in ACTS.items():
        hits = sum(act in s for s in found[kind]) / len(found[kind])
        others = {k: sum(act in s for s in v) / len(v) for k, v in found.items() if k != kind}
        flat = [act in s for k, v in found.items() if k != kind for s in v]
        alarms += flat
        worst = sorted(others.items(), key=lambda kv: -kv[1])[:4]
        print(f"{kind:10} {hits:6.2f} {sum(flat) / len(flat):7.2f}   " + ", ".join(f"{k} {v:.2f}" for k, v in worst))
    print(f"{'overall':17} {sum(alarms) / len(alarms):7.2f}")
    harm = [a for v in found.values() for s in v for a in s if ".neg." in a]
    print(f"harm seen in {len(harm)} of {sum(map(len, found.values()))} phrases, none of which does any")


def report_single(found: dict[str, list[dict[str, float]]]) -> None:
    """Print which single act, if any, the phrases of each move are taken for."""
    columns = [*COLUMNS, "none"]
    print(f"\n{'move':10} " + " ".join(f"{c:>8}" for c in columns))
    right, counted = 0, 0
    for kind, each in found.items():
        tops = [top(s) for s in each]
        print(f"{kind:10} " + " ".join(f"{tops.count(c) / len(tops):8.2f}" for c in columns))
        if kind in ACTS or kind in PLAIN:
            right += tops.count(kind if kind in ACTS else "none")
            counted += len(tops)
    print(f"right: {right / counted:.3f} of {counted} phrases that perform one act or plainly none")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("working", "test", "all"), default="all")
    parser.add_argument("--judge", choices=sorted(JUDGES), default="embedded")
    args = parser.parse_args()
    read = reader(*JUDGES[args.judge])
    found = {kind: [shown(read, p) for p in part_of(kind, bank, args.part)] for kind, bank in phrases().items()}
    report_each(found)
    report_single(found)


if __name__ == "__main__":
    main()
