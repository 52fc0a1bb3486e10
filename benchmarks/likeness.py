"""How alike unrelated texts are under each encoder, and the bars of the judge that follow.

    python benchmarks/likeness.py

The embedded judge's bars for likeness were set over static vectors. For another encoder each is placed where it is as
rare. What is alike, or may hurt: the same share of pairs of lines from people of different domains of the train split
lies above the bar. What surely hurts says nearly the same words: the same share of lines lies above the bar when they
are compared with themselves less one word. What harm must score: the same share of the first rubric's other examples,
left out of the fit, scores higher. How far a listener's acts go with what was told: in proportion to how well the
encoder's own reader tells the act that wishes call for, on its own examples left out. The encoder for Chinese is
measured on Chinese lines, those of `benchmark-zh`, for want of a train split.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from echo_env.agents.embedded.anchors import can_hurt, fitted
from echo_env.agents.embedded.encoders import SCALES, encoder_of
from echo_env.agents.embedded.language import read
from echo_env.profiles import get_scenario, scenario_ids

SCENARIOS = 48
BARS = {
    "alike": "unrelated lines",
    "hurts": "unrelated lines",
    "surely_hurts": "lines less one word",
    "harm_least": "harm in other examples",
    "cued_least": "harm in other examples",
}


LINES_OF = {"characters": ("benchmark-zh", "zh")}
"""Encoder -> the split and language of the lines that it is measured on, where not the English train split."""


def lines(encoder: str = "wordllama") -> list[list[tuple[str, ...]]]:
    """Return the content words of each line that an encoder is measured on, by domain, each line once."""
    split, language = LINES_OF.get(encoder, ("train", "en"))
    ids = scenario_ids(split)
    found: dict[str, str] = {}
    for name in ids[:: max(1, len(ids) // SCENARIOS)]:
        scenario = get_scenario(name)
        for line in scenario.lines():
            found.setdefault(line.say, scenario.domain)
    domains = sorted(set(found.values()))
    telling = {say: tuple(w for s in read(say, language).sentences for w in s.telling) for say in found}
    return [[telling[say] for say, of in found.items() if of == domain] for domain in domains]


def unrelated(encoder: str, by_domain: Sequence[Sequence[tuple[str, ...]]]) -> NDArray[np.float64]:
    """Return the cosines of all pairs of lines from different domains."""
    vectors = [np.stack(encoder_of(encoder).encode_all(group)) for group in by_domain]
    pairs = itertools.combinations(vectors, 2)
    return np.concatenate([(a @ b.T).ravel() for a, b in pairs]).astype(np.float64)


def less_one(encoder: str, by_domain: Sequence[Sequence[tuple[str, ...]]]) -> NDArray[np.float64]:
    """Return the cosines of lines with themselves less one word, in turn the first, the second, ... of the line."""
    whole = [words for group in by_domain for words in group if len(words) >= 3]
    places = [k % len(words) for k, words in enumerate(whole)]
    cut = [words[:at] + words[at + 1 :] for words, at in zip(whole, places, strict=True)]
    vectors = [np.stack(encoder_of(encoder).encode_all(texts)) for texts in (whole, cut)]
    return np.einsum("ij,ij->i", *vectors).astype(np.float64)


def harm_elsewhere(encoder: str) -> NDArray[np.float64]:
    """Return the scores of harm and advice that the first rubric's other examples get."""
    fit = fitted("epm_v1_zh" if encoder == "characters" else "epm_v1", encoder)
    harm = np.array([can_hurt(act) for act in fit.reader.acts])
    return fit.unseen[:, harm][~fit.shown[:, harm]]


TOLD_BY = {"wordllama": "epm_v1", "minilm": "epm_second_v1", "characters": "epm_v1_zh"}
"""Encoder -> the rubric of the judge that uses it."""


def told(encoder: str, act: str = "P.prog.2.empowers") -> float:
    """Return the correlation of "the act shown most is this one" with the truth, were every second sentence one.

    A noisier reader sees less of the bond between acts and what was told, by this factor.
    """
    fit = fitted(TOLD_BY[encoder], encoder)
    acts = fit.reader.acts
    good = [k for k, a in enumerate(acts) if a.level > 0]
    passed = np.where(fit.unseen >= np.array(fit.reader.thresholds), fit.unseen, -np.inf)[:, good]
    most = np.array(good)[passed.argmax(axis=1)]
    place = next(k for k, a in enumerate(acts) if a.id == act)
    shown = np.isfinite(passed.max(axis=1)) & (most == place)
    harmless = ~fit.shown[:, [k for k, a in enumerate(acts) if a.level < 0]].any(axis=1)
    hits = float(shown[fit.shown[:, place]].mean())
    alarms = float(shown[harmless & ~fit.shown[:, place]].mean())
    rate = (hits + alarms) / 2
    return (hits - alarms) / 2 / float(np.sqrt(rate * (1 - rate)))


def placed(bar: float, reference: NDArray[np.float64], other: NDArray[np.float64]) -> tuple[float, float]:
    """Return the share of reference cosines above a bar, and where the bar lies among another encoder's."""
    share = float((reference > bar).mean())
    return share, float(np.quantile(other, 1.0 - share))


def cosines(encoder: str, by_domain: Sequence[Sequence[tuple[str, ...]]]) -> dict[str, NDArray[np.float64]]:
    """Return what the bars are held against, by kind."""
    return {
        "unrelated lines": unrelated(encoder, by_domain),
        "lines less one word": less_one(encoder, by_domain),
        "harm in other examples": harm_elsewhere(encoder),
    }


def main() -> None:
    """Print the table."""
    print(f"{sum(map(len, lines()))} lines, {sum(map(len, lines('characters')))} in Chinese")
    by_encoder = {name: cosines(name, lines(name)) for name in SCALES}
    for name, found in by_encoder.items():
        for kind, values in found.items():
            print(f"{name}, {kind}: {len(values)}, mean {values.mean():.3f}, deviation {values.std():.3f}")
        for bar, kind in BARS.items():
            share, value = placed(getattr(SCALES["wordllama"], bar), by_encoder["wordllama"][kind], found[kind])
            print(f"  {bar:13} {share:10.6f} of {kind}: {value:.3f}")
        listening = SCALES["wordllama"].listening * told(name) / told("wordllama")
        print(f"  listening     correlation {told(name):.3f} with the act that wishes call for: {listening:.3f}")


if __name__ == "__main__":
    main()
