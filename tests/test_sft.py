"""Fine-tuning: the loss does not depend on how it is computed, a resumed run is an unbroken one, a model learns."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("hydra")

from sftfiles import TALKS, TINY, line, talk, write  # noqa: E402

from echo_env.agents.loading import load_model  # noqa: E402
from echo_env.agents.policy import local_model  # noqa: E402
from echo_env.errors import ConfigError, RecordError  # noqa: E402
from echo_env.roles import Observation  # noqa: E402
from echo_env.trainers import sft  # noqa: E402
from echo_env.trainers.learner import rate_at  # noqa: E402
from echo_env.trainers.logits import Head  # noqa: E402
from echo_env.trainers.losses import token_logprobs, totals  # noqa: E402
from echo_env.trainers.sft import Trainer, batch_of, loss_of, measure, prepare, train  # noqa: E402
from echo_env.trainers.sftjob import SftJob  # noqa: E402
from echo_env.trainers.trajectory import micro_batches  # noqa: E402


@pytest.fixture
def make_job(tmp_path):
    """Return jobs on three short conversations."""
    file = write(tmp_path / "talks.jsonl", [line(f"t{k}", texts) for k, texts in enumerate(TALKS)])

    def job(out: str = "run", **changes) -> SftJob:
        settings = {
            "out": tmp_path / out, "data": [{"path": file}], "model": {"scratch": TINY, "system": ""}, "held_out": 0,
            "batch": 2, "epochs": 2, "lr": 3e-3, "warmup": 0,
        } | changes  # fmt: skip
        return SftJob.model_validate(settings)

    return job


# ---- the loss


def _gradient(ready, micro_tokens: int, examples) -> tuple[float, torch.Tensor]:
    ready.model.zero_grad()
    batch = batch_of(examples)
    total, head, loss = totals(batch.policy_BT), Head(ready.model), 0.0
    for rows in micro_batches(batch, micro_tokens):
        part = loss_of(head, batch.take(rows), total)
        part.backward()
        loss += part.item()
    return loss, torch.cat([p.grad.flatten() for p in ready.model.parameters()])


@pytest.mark.parametrize("micro_tokens", [1, 60, 90])
def test_loss_and_gradient_do_not_depend_on_the_split(make_job, micro_tokens):
    ready = prepare(make_job())
    whole, gradient = _gradient(ready, 10_000, ready.train)
    parts, same = _gradient(ready, micro_tokens, ready.train)
    assert parts == pytest.approx(whole, abs=1e-6)
    assert torch.allclose(gradient, same, atol=1e-6)


def test_loss_does_not_depend_on_padding(make_job):
    ready = prepare(make_job())
    short = min(ready.train, key=lambda e: len(e.ids))
    alone = loss_of(Head(ready.model), batch_of([short]), totals(batch_of([short]).policy_BT))
    padded = batch_of([short, max(ready.train, key=lambda e: len(e.ids))])
    padded.turn_BT[1] = -1
    padded.ids_BT[0, len(short.ids) :] = 7
    assert padded.ids_BT.shape[1] > len(short.ids)
    assert loss_of(Head(ready.model), padded, totals(padded.policy_BT)).item() == pytest.approx(alone.item(), abs=1e-6)


def test_loss_is_the_mean_over_replies(make_job):
    ready = prepare(make_job())
    ready.model.eval()
    sums = []
    for e in ready.train:
        ids = torch.tensor([e.ids])
        logprobs = token_logprobs(ready.model(input_ids=ids).logits, ids)[0]
        sums += [-logprobs[k].item() for k, on in enumerate(e.mask) if on]
    assert measure(Head(ready.model), ready.train, 64) == pytest.approx(sum(sums) / len(sums), abs=1e-5)
    assert measure(Head(ready.model), [], 64) is None


def test_users_words_are_trained_on_only_where_it_was_asked_for(make_job):
    ready, everything = prepare(make_job(held_out=0.34)), prepare(make_job(held_out=0.34, train_on="all"))
    for e, full in zip(ready.train, everything.train, strict=True):
        assert full.ids == e.ids
        assert sum(full.mask) == len(e.ids) - 1 > sum(e.mask) > 0
    assert everything.measured == ready.measured


def test_warm_up_and_cosine(make_job):
    # 3 conversations, 4 epochs, batches of 1: 12 updates, a quarter of them warm-up
    trainer = Trainer(job := make_job(epochs=4, batch=1, lr=1.0, warmup=0.25), prepare(job))
    rates = [rate_at(trainer.spec, k, 12) for k in range(12)]
    assert rates[:4] == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0])
    assert rates[7] == pytest.approx((1 + math.cos(math.pi * 4 / 9)) / 2)
    assert sorted(rates[3:], reverse=True) == rates[3:]
    assert 0 < rates[-1] < 0.05


# ---- the run


def test_a_tiny_model_learns_three_conversations_by_heart_and_says_them(make_job):
    job = make_job(epochs=80, batch=3, lr=1e-2, warmup=0.05)
    assert train(job)
    lines = [json.loads(x) for x in (job.out / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["loss"] > 4
    assert lines[-1]["loss"] < 0.1
    folder = job.out / "checkpoints" / "latest"
    policy = local_model(folder, system="", temperature=0, max_new_tokens=24)
    for texts in TALKS:
        for turn in (1, 3):
            said = policy.respond_batch([Observation(messages=talk(*texts[:turn]))], [0])
            assert said == [texts[turn]]


def test_resume_equals_unbroken(make_job):
    whole = make_job("whole", epochs=3)
    train(whole)

    broken, calls = make_job("broken", epochs=3, checkpoints={"every": 1, "keep": 9}), []

    class Stop(Exception):
        pass

    def tell(text: str) -> None:
        calls.append(text)
        if text.startswith("update 3/"):
            raise Stop

    with pytest.raises(Stop):
        train(broken, tell)
    assert train(broken.model_copy(update={"resume": True}))
    one, two = (load_model(j.out / "checkpoints" / "latest", "cpu", None)[1] for j in (whole, broken))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6, rtol=0)
    logs = [[json.loads(x) for x in (j.out / "metrics.jsonl").read_text().splitlines()] for j in (whole, broken)]
    assert [x["update"] for x in logs[1]] == [x["update"] for x in logs[0]] == [1, 2, 3, 4, 5]
    assert [x["loss"] for x in logs[1]] == pytest.approx([x["loss"] for x in logs[0]], abs=1e-6)


def test_other_data_or_settings_are_not_gone_on_with(make_job, tmp_path):
    job = make_job()
    train(job)
    with pytest.raises(RecordError, match="holds a run already"):
        train(job)
    with pytest.raises(RecordError, match="different: lr"):
        train(make_job(lr=1.0, resume=True))
    (tmp_path / "talks.jsonl").unlink()
    write(tmp_path / "talks.jsonl", [line(f"t{k}", texts[:2]) for k, texts in enumerate(TALKS)])
    with pytest.raises(RecordError, match="not those"):
        train(make_job(resume=True))


def test_the_record_tells_who_is_imitated(make_job):
    job = make_job(held_out=0.34)
    train(job)
    header = json.loads((job.out / "header.jsonl").read_text())
    assert header["config"]["facts"]["companions"] == {"skilled-1": 3}
    assert header["config"]["facts"]["held_out"] == 1
    assert set(header["scenarios"]) == {"train-0001"}
    last = json.loads((job.out / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["held_out_loss"] > 0
    assert last["tokens_per_second"] > 0


def test_a_saved_model_can_be_tuned_on(make_job):
    first = make_job("first")
    train(first)
    second = make_job("second", model={"path": str(first.out / "checkpoints" / "latest"), "system": ""})
    assert train(second)
    assert prepare(second).tokenizer.get_vocab() == prepare(first).tokenizer.get_vocab()


def test_lora_is_merged_and_can_be_resumed(make_job):
    pytest.importorskip("peft")
    first = make_job("first")
    train(first)
    model = {"path": str(first.out / "checkpoints" / "latest"), "system": "", "lora": {"rank": 2}}
    job = make_job("lora", model=model, epochs=1, checkpoints={"every": 1, "keep": 9})
    train(job)
    folder = job.out / "checkpoints" / "latest"
    assert (folder / "adapter" / "adapter_model.safetensors").exists()
    merged = load_model(folder, "cpu", None)[1]
    ready = prepare(job, folder)
    ids = torch.tensor([ready.train[0].ids])
    assert torch.allclose(merged(input_ids=ids).logits, ready.model(input_ids=ids).logits, atol=1e-5)


def test_each_keeps_its_own_system_prompt_unless_told_otherwise(make_job, tmp_path):
    file = write(
        tmp_path / "own.jsonl", [line("a", TALKS[0], system="Be kind."), line("b", TALKS[1], system="Be odd.")]
    )
    for system, shown in ((None, {"Be kind.", "Be odd."}), ("One for all.", {"One for all."}), ("", {""})):
        ready = prepare(make_job(data=[{"path": file}], model={"scratch": TINY, "system": system}))
        said = {ready.tokenizer.decode(e.ids).partition("<|im_start|>user")[0] for e in ready.train}
        assert said == {f"<|im_start|>system\n{s}<|im_end|>" if s else "" for s in shown}


def test_epochs_are_laid_end_to_end(make_job):
    ready = prepare(make_job())
    assert [len(b) for b in ready.plan] == [2, 2, 2]
    places = [p for batch in ready.plan for p in batch]
    assert sorted(places[:3]) == sorted(places[3:]) == [0, 1, 2]


# ---- the command line


def _sft(*overrides: str, **options) -> subprocess.CompletedProcess[str]:
    script = Path(sft.__file__)
    return subprocess.run([sys.executable, str(script), *overrides], capture_output=True, text=True, **options)


def test_every_preset_composes(tmp_path):
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    configs = Path(sft.__file__).resolve().parent.parent / "configs"
    with initialize_config_dir(str(configs), version_base=None):
        for preset in sorted(f.stem for f in (configs / "sft").glob("*.yaml")):
            for model in ("scratch-3m", "scratch-5m", "smollm2-135m"):
                found = compose("sft", [f"sft={preset}", f"model={model}", "data=[{path: a.jsonl}]"])
                job = SftJob.model_validate(OmegaConf.to_container(found, resolve=True))
                if preset == "paper":
                    assert (job.epochs, job.batch, job.lr, job.warmup) == (4, 128, 1e-5, 0.1)
                    assert job.curriculum == "staged"
                if preset in ("words", "talks"):
                    assert job.window == {"words": 1, "talks": 0}[preset]  # for words not the value of sft.yaml


def test_a_mistake_is_told_without_a_traceback(tmp_path):
    done = _sft(f"out={tmp_path / 'run'}", "data=[{path: none.jsonl}]", "dry_run=true")
    assert done.returncode == 2
    assert "there are no conversations at none.jsonl" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_ctrl_c_saves(make_job, tmp_path):
    overrides = [f"model.scratch.{k}={v}" for k, v in {**TINY, "kv_heads": "null"}.items()]
    overrides += [f"out={tmp_path / 'run'}", f"data=[{{path: {tmp_path / 'talks.jsonl'}}}]", "epochs=100000"]
    make_job()
    script = [sys.executable, str(Path(sft.__file__)), *overrides]
    with subprocess.Popen(script, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}) as run:
        for text in run.stderr:
            if text.startswith("update 5/"):
                run.send_signal(signal.SIGINT)
                break
        rest = run.stderr.read()
    assert run.returncode == 130
    assert "is saved, go on with  resume=true" in rest
    load_model(tmp_path / "run" / "checkpoints" / "latest", "cpu", None)


def test_a_model_is_a_folder_or_made_never_both():
    with pytest.raises(ValueError, match="give a model's folder"):
        SftJob.model_validate({"out": "x", "data": [{"path": "a"}], "model": {}})
    with pytest.raises(ValueError, match="give a model's folder"):
        SftJob.model_validate({"out": "x", "data": [{"path": "a"}], "model": {"path": "x", "scratch": TINY}})


def test_a_model_that_is_not_there_is_told(make_job, tmp_path):
    with pytest.raises(ConfigError, match="there is no folder"):
        prepare(make_job(model={"path": str(tmp_path / "none")}))
