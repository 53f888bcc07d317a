"""Text from a trained model, and its loss on a dataset."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from tests.training.inference.conftest import Store
from training.__main__ import main
from training.data.dataset import open_dataset
from training.inference.sample import generate
from training.models.key_value_cache import KeyValueCache


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_the_seed_determines_the_text(store: Store, kind: str) -> None:
    _, model = store(kind)
    prompt = [1, 2, 3]
    first = generate(model, prompt, 60, seed=1)
    assert len(first) == 60
    assert first == generate(model, prompt, 60, seed=1) != generate(model, prompt, 60, seed=2)
    greedy = generate(model, prompt, 60, temperature=0)
    assert greedy == generate(model, prompt, 60, top_k=1, seed=3) == generate(model, prompt, 60, temperature=1e-30)
    token = int(model.logits(torch.tensor([prompt]))[0, -1].argmax())
    assert greedy[0] == token
    assert generate(model, prompt, 60, temperature=0, ends=frozenset({token})) == []


@pytest.mark.parametrize("kind", ["gpt", "llama"])
@pytest.mark.parametrize("length", [1, 3, 31, 32, 40])
def test_the_cache_does_not_change_the_text(store: Store, kind: str, length: int) -> None:
    _, model = store(kind)  # a sequence has 32 tokens: all texts become longer than that
    prompt = [(7 * number) % 290 for number in range(length)]
    for options in ({"temperature": 0.0}, {"seed": 4, "top_k": 20}):
        cached = generate(model, prompt, 50, **options)
        assert cached == generate(model, prompt, 50, uses_cache=False, **options)


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_the_cache_has_the_scores_of_the_complete_text(store: Store, kind: str) -> None:
    _, model = store(kind)
    tokens = torch.arange(64).reshape(2, 32) * 11 % 290
    cache = KeyValueCache(2, 32)
    with torch.no_grad():
        parts = [
            model.logits(tokens[:, :20], cache),
            *(model.logits(tokens[:, n : n + 1], cache) for n in range(20, 32)),
        ]
        torch.testing.assert_close(torch.cat(parts, dim=1), model.logits(tokens), rtol=1e-5, atol=1e-5)
    assert cache.length == 32


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_a_cached_step_computes_one_token(store: Store, kind: str) -> None:
    _, model = store(kind)
    widths: list[int] = []
    model.token_embedding.register_forward_hook(lambda module, arguments, result: widths.append(result.shape[1]))
    generate(model, [1, 2, 3], 33)
    assert widths == [3] + [1] * 29 + [32] * 3  # from the 33rd token on, the positions of all tokens change


def test_top_k_limits_the_choice(store: Store) -> None:
    _, model = store("gpt")
    best = set(model.logits(torch.tensor([[7]]))[0, -1].topk(3).indices.tolist())
    chosen = {generate(model, [7], 1, top_k=3, temperature=50.0, seed=seed)[0] for seed in range(40)}
    assert chosen == best


def test_sample_continues_the_prompt(store: Store, tmp_path: Path, tiny_dataset: Path, capsys: Any) -> None:
    url, model = store("gpt")
    options = ["--prompt", "loss of node", "--max-new-tokens", "5", "--temperature", "0"]
    assert main(["sample", url, *options, "--dataset", str(tiny_dataset)]) == 0
    text = capsys.readouterr().out
    tokenizer = Tokenizer.from_file(str(tiny_dataset / "tokenizer.json"))
    prompt = tokenizer.encode("loss of node").ids
    assert text == tokenizer.decode(prompt + generate(model, prompt, 5, temperature=0)) + "\n"
    assert main(["weights", url, "-o", str(tmp_path / "hf"), "--dataset", str(tiny_dataset)]) == 0
    capsys.readouterr()
    assert main(["sample", str(tmp_path / "hf"), *options]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_evaluate_agrees_with_the_validation_of_a_run(
    gangs: Any, tmp_path: Path, tiny_dataset: Path, tiny_config: dict[str, Any], store: Store, kind: str, capsys: Any
) -> None:
    url, _ = store(kind)
    settings = json.loads(json.dumps(open_config(url)))
    config = {
        **tiny_config,
        "steps": 2,
        "model": settings,
        "validation": {"interval_steps": 2, "batches": 1000},
    }
    run = gangs.finish("run", config)
    (record,) = run.records("validation")
    assert main(["evaluate", run.checkpoints, "--dataset", str(tiny_dataset), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["loss"] == pytest.approx(record["loss"], rel=1e-5)
    assert result["bits_per_byte"] == pytest.approx(record["bits_per_byte"], rel=1e-5)
    assert result["perplexity"] == pytest.approx(math.exp(record["loss"]), rel=1e-4)
    tokens = open_dataset(tiny_dataset).record.splits["validation"].tokens
    assert result["tokens"] == (tokens - 1) // 32 * 32


def open_config(url: str) -> dict[str, Any]:
    from training.checkpoint.selection import select

    model: dict[str, Any] = select(url).manifest.config["model"]
    return model


def test_model_and_dataset_from_s3(
    s3_environment: dict[str, str], store: Store, tiny_dataset: Path, capsys: Any
) -> None:
    import boto3

    url, _ = store("gpt")
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket="inference")
    for name, folder in (("model", Path(url)), ("datasets/tiny", tiny_dataset)):
        for path in folder.rglob("*"):
            if path.is_file():
                s3.upload_file(str(path), "inference", f"{name}/{path.relative_to(folder)}")
    assert main(["evaluate", url, "--dataset", str(tiny_dataset), "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    arguments = ["--dataset", "s3://inference/datasets/tiny"]
    assert main(["evaluate", "s3://inference/model#3", *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] == expected["loss"]
    assert main(["sample", "s3://inference/model", *arguments, "--prompt", "loss", "--max-new-tokens", "2"]) == 0
    assert capsys.readouterr().out.startswith("loss")
    shard = open_dataset(tiny_dataset).record.splits["validation"].shards[0].file
    s3.put_object(Bucket="inference", Key=f"datasets/tiny/{shard}", Body=b"12")
    assert main(["evaluate", "s3://inference/model", *arguments]) == 2
    assert "hash differs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prompt", ""], "contains no token"),
        (["--prompt", "a", "--temperature", "-1"], "--temperature: -1.0"),
        (["--prompt", "a", "--temperature", "nan"], "--temperature: nan"),
        (["--prompt", "a", "--top-k", "0"], "--top-k: 0"),
        (["--prompt", "a", "--max-new-tokens", "0"], "--max-new-tokens: 0"),
        (["--prompt", "a", "--seed", "-1"], "--seed: -1"),
    ],
)
def test_mistakes_are_explained(
    store: Store, tiny_dataset: Path, options: list[str], message: str, capsys: Any
) -> None:
    url, _ = store("gpt")
    assert main(["sample", url, "--dataset", str(tiny_dataset), *options]) == 2
    assert message in capsys.readouterr().err


def test_another_tokenizer_is_refused(store: Store, tmp_path: Path, tiny_dataset: Path, capsys: Any) -> None:
    url, _ = store("gpt")
    assert main(["sample", url, "--prompt", "a"]) == 2
    assert "name the run's dataset with --dataset" in capsys.readouterr().err
    (tmp_path / "text").mkdir()
    for number in range(4):
        (tmp_path / "text" / f"{number}.txt").write_text(f"other words for another tokenizer {number} " * 500)
    arguments = ["--input", str(tmp_path / "text"), "--output", str(tmp_path), "--name", "other"]
    assert main(["tokenize", *arguments, "--vocabulary-size", "280", "--validation-share", "0.5"]) == 0
    capsys.readouterr()
    for command in (["evaluate", url], ["sample", url, "--prompt", "a"]):
        assert main([*command, "--dataset", str(tmp_path / "other")]) == 2
        assert "different tokenizer from the model's" in capsys.readouterr().err
    broken = tmp_path / "broken"
    shutil.copytree(tiny_dataset, broken)
    (broken / "validation-00000.bin").unlink()
    assert main(["evaluate", url, "--dataset", str(broken)]) == 2
    assert "missing" in capsys.readouterr().err
