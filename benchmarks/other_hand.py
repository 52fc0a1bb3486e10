"""How well each embedded judge tells the acts of the other's rubric: examples by another hand, harm included.

    python benchmarks/other_hand.py [--judge second]

The two rubrics share no sentence and no run of five words. Prints, act by act, the share of the other rubric's examples
that show the act, that show any harm, and the share of its other sentences taken for the act.
"""

from __future__ import annotations

import argparse
import re

from echo_env.agents.embedded.anchors import Reader, can_hurt, reader, rubric, spoken

JUDGES = {
    "embedded": ("epm_v1", "wordllama", "epm_second_v1"),
    "second": ("epm_second_v1", "minilm", "epm_v1"),
}
"""Judge -> its rubric, its encoder, and the rubric whose examples it is tried on."""


def shown(read: Reader, example: str) -> set[str]:
    """Return the acts that an example shows, the story's words, in braces, blanked."""
    return set(read.shown(re.sub(r"[{}]", "", example), spoken(example)))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge", choices=sorted(JUDGES), default="embedded")
    own, encoder, name = JUDGES[parser.parse_args().judge]
    read, other = reader(own, encoder), rubric(name)
    acts = [a for a in other.anchors if a.found_by == "act"]
    found = {a.id: [shown(read, text) for text in a.for_] for a in acts}
    found["none of them"] = [shown(read, text) for text in other.neutral]
    harm = {a.id for a in acts if a.level < 0}
    print(f"{own} by {encoder}, on the examples of {name}")
    print(f"{'act':20} {'found':>6} {'harm':>6} {'others':>7}   others by kind")
    for kind, shows in found.items():
        others = {k: sum(kind in s for s in v) / len(v) for k, v in found.items() if k != kind}
        flat = [kind in s for k, v in found.items() if k != kind for s in v]
        worst = ", ".join(f"{k} {v:.2f}" for k, v in sorted(others.items(), key=lambda kv: -kv[1])[:3] if v)
        hits, hurt = (sum(bool(s & what) for s in shows) / len(shows) for what in ({kind}, harm))
        print(f"{kind:20} {hits:6.2f} {hurt:6.2f} {sum(flat) / len(flat):7.2f}   {worst}")
    innocent = [s for a in acts if not can_hurt(a) for s in found[a.id]] + found["none of them"]
    print(f"harm seen in {sum(bool(s & harm) for s in innocent)} of {len(innocent)} examples that do none")


if __name__ == "__main__":
    main()
