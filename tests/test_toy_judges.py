"""Echo-N1 section 5.3.1 with toy judges: one that loves length is caught by the monitor, an anchored 0/1 one is not.

Both train the same tiny policy by the real loop, on the same prompts and with the same settings.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra `train` is not installed")
pytest.importorskip("transformers", reason="the extra `train` is not installed")

import torch
from tinypolicy import tiny_model, tiny_tokenizer

from echo_env.build import WorldConfig
from echo_env.rewards import ReplyView, Step
from echo_env.trainers.job import Algorithm, Checkpoints, Data, Job, Mode, Model, Monitor, Optimiser
from echo_env.trainers.local import Trained, train
from echo_env.trainers.losses import DAPO
from echo_env.trainers.promptdata import RlPrompt, write_lines
from echo_env.types import Verdict

CAP = 40
"""Longest reply, in tokens."""
UPDATES = 40
REFERENCE = "WELL... I see it now."
MESSAGES = ("I lost it.", "She left.", "It is late.", "Nobody called.", "My job ends.", "He is ill.")


class Toy:
    """A recipe of one judge, which reads nothing but the text."""

    def __init__(self, judge: Callable[[str, str], float]) -> None:
        self.judge, self.id = judge, f"{judge.__name__}-1"

    async def verdicts(self, view: ReplyView) -> tuple[Verdict, ...]:
        value = self.judge(view.judged.exchange.reply, view.reference or "")
        return (Verdict(kind="toy", judge=self.id, value=value),)

    def turn(self, step: Step) -> dict[str, float] | None:
        (verdict,) = step.verdicts
        return None if verdict.value is None else {"toy": verdict.value}


def longer(reply: str, reference: str) -> float:
    """A scalar that grows with every letter, as that of Echo-N1's hacked judge did."""
    return len(reply) / CAP


def better(reply: str, reference: str) -> float:
    """1 where the reply is better than the reference: calmer, with fewer signs and capitals, and not by running on."""
    return float(calm(reply) > calm(reference) and len(reply) <= len(reference))


def calm(text: str) -> float:
    """Share of small letters and spaces."""
    return fmean(c in " abcdefghijklmnopqrstuvwxyz" for c in text) if text else 0.0


def length_loving() -> Toy:
    return Toy(longer)


def anchored() -> Toy:
    return Toy(better)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that says any token of the vocabulary, and ends one reply in ten at each of them."""
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer))
    wanted = torch.full((len(tokenizer),), 0.9 / (len(tokenizer) - 1))
    wanted[tokenizer.eos_token_id] = 0.1
    optimiser = torch.optim.Adam(model.parameters(), lr=4e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        ids = torch.randint(len(tokenizer), (16, 24), generator=generator)
        loss = -(model(input_ids=ids).logits.log_softmax(-1) * wanted).sum(-1).mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def trained(start: Path, out: Path, recipe: str) -> tuple[Trained, list[dict[str, Any]]]:
    """Train by a recipe of this module until the length alarm or the end; return the figures of each update."""
    prompts = out.with_suffix(".jsonl")
    write_lines(prompts, [RlPrompt(echo_env=1, id=m, user=m, reference=REFERENCE) for m in MESSAGES])
    job = Job(
        name=recipe,
        out=out,
        updates=UPDATES,
        groups=4,
        model=Model(path=str(start), system=""),
        mode=Mode(name="pseudo", reply_tokens=CAP, context=256),
        data=Data(prompts=prompts),
        world=WorldConfig(recipe=f"{__name__}:{recipe}"),
        algo=Algorithm(name="toy", group=8, objective=DAPO),
        optim=Optimiser(lr=4e-3),
        monitor=Monitor(reference_kl=False, samples=0, detectors_every=0, stop_on=("length",)),
        checkpoints=Checkpoints(every=0),
    )
    end = train(job)
    return end, [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def ends(figures: list[dict[str, Any]], name: str) -> tuple[float, float]:
    """Means of a figure over the first quarter of the updates and over the last."""
    span = len(figures) // 4
    return fmean(f[name] for f in figures[:span]), fmean(f[name] for f in figures[-span:])


def test_a_judge_that_loves_length_raises_the_alarm(start: Path, tmp_path: Path) -> None:
    end, figures = trained(start, tmp_path / "run", "length_loving")
    assert end.reason == "alarm"
    assert "length" in figures[-1]["alarms"]
    assert len(figures) < UPDATES
    for name in ("length_mean", "reward"):
        before, after = ends(figures, name)
        assert after > 1.3 * before, name


def test_a_judge_that_compares_with_a_reference_raises_none(start: Path, tmp_path: Path) -> None:
    end, figures = trained(start, tmp_path / "run", "anchored")
    assert end.reason == "done"
    assert len(figures) == UPDATES
    assert not any("length" in f["alarms"] for f in figures)
    before, after = ends(figures, "reward")
    assert after > before + 0.1, (before, after)  # it learnt, too: there was something to raise an alarm about
    before, after = ends(figures, "length_mean")
    assert after < 1.3 * before
