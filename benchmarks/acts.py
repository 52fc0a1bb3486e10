"""How well the rubric's reader tells acts, on phrases by another hand.

    python benchmarks/acts.py

The phrases are those of the reference companion (`sim_profiles/voices/companion_en.yaml`), written without sight of the
rubric. Each kind of phrase performs one act, or none; prints the share found, and the share of others taken for it.
"""

from __future__ import annotations

import re

from echo_env.agents.embedded.anchors import reader
from echo_env.agents.embedded.language import lexicon, words
from echo_env.agents.embedded.skilled import phrases

ACTS = {
    "validate": "A.prog.1.validates",
    "reframe": "C.prog.2.reframes",
    "affirm": "P.prog.1.affirms",
    "empower": "P.prog.2.empowers",
}


def shown(phrase: str) -> set[str]:
    """Return the acts that a phrase shows, its slots blanked as the judge blanks the story's words."""
    blanked = [w for w in words(re.sub(r"\{[^}]*\}", " ", phrase)) if w not in lexicon().feeling_of]
    return set(reader("epm_v1").shown(re.sub(r"\{[^}]*\}", "it", phrase), blanked))


def main() -> None:
    """Print the table."""
    found = {kind: [shown(p) for p in bank] for kind, bank in phrases().items()}
    print(f"{'act':10} {'found':>6} {'others':>7}   others by kind")
    for kind, act in ACTS.items():
        hits = sum(act in s for s in found[kind]) / len(found[kind])
        others = {k: sum(act in s for s in v) / len(v) for k, v in found.items() if k != kind}
        flat = [act in s for k, v in found.items() if k != kind for s in v]
        worst = sorted(others.items(), key=lambda kv: -kv[1])[:4]
        print(f"{kind:10} {hits:6.2f} {sum(flat) / len(flat):7.2f}   " + ", ".join(f"{k} {v:.2f}" for k, v in worst))
    harm = [a for v in found.values() for s in v for a in s if ".neg." in a]
    print(f"harm seen in {len(harm)} of {sum(map(len, found.values()))} phrases, none of which does any")


if __name__ == "__main__":
    main()
