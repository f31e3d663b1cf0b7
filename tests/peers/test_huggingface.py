# SPDX-License-Identifier: Apache-2.0
"""The tables of ckptfmt.huggingface, on the models of transformers and on the layouts of the
original releases, which are written down here."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from support.pages import run_console, run_page

import ckptfmt
import ckptfmt.torch
from ckptfmt import huggingface

VOCABULARY, EMBEDDING, HIDDEN, INNER, POSITIONS, HEADS, LAYERS = 11, 6, 8, 10, 7, 2, 2
Shapes = dict[str, tuple[int, ...]]

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": POSITIONS,
}


def dense(name: str, inputs: int, outputs: int) -> Shapes:
    return {f"{name}/kernel": (inputs, outputs), f"{name}/bias": (outputs,)}


def norm(name: str, size: int = HIDDEN) -> Shapes:
    return {f"{name}/LayerNorm/beta": (size,), f"{name}/LayerNorm/gamma": (size,)}


def embeddings(name: str, size: int) -> Shapes:
    return {
        f"{name}/word_embeddings": (VOCABULARY, size),
        f"{name}/token_type_embeddings": (2, size),
        f"{name}/position_embeddings": (POSITIONS, size),
        **norm(name, size),
    }


def attention(name: str, output: str) -> Shapes:
    found: Shapes = {}
    for one in ("query", "key", "value"):
        found |= dense(f"{name}/self/{one}", HIDDEN, HIDDEN)
    return found | dense(f"{name}/{output}", HIDDEN, HIDDEN)


def bert_layers(name: str) -> Shapes:
    found: Shapes = {}
    for index in range(LAYERS):
        layer = f"{name}/encoder/layer_{index}"
        found |= attention(f"{layer}/attention", "output/dense") | norm(f"{layer}/attention/output")
        found |= dense(f"{layer}/intermediate/dense", HIDDEN, INNER)
        found |= dense(f"{layer}/output/dense", INNER, HIDDEN) | norm(f"{layer}/output")
    return found


def pretraining_heads(size: int) -> Shapes:
    return {
        **dense("cls/predictions/transform/dense", HIDDEN, size),
        **norm("cls/predictions/transform", size),
        "cls/predictions/output_bias": (VOCABULARY,),
        "cls/seq_relationship/output_weights": (2, HIDDEN),
        "cls/seq_relationship/output_bias": (2,),
    }


def bert() -> Shapes:
    return {
        **embeddings("bert/embeddings", HIDDEN),
        **bert_layers("bert"),
        **dense("bert/pooler/dense", HIDDEN, HIDDEN),
        **pretraining_heads(HIDDEN),
    }


def albert() -> Shapes:
    layer = "bert/encoder/transformer/group_0/inner_group_0"
    return {
        **embeddings("bert/embeddings", EMBEDDING),
        **dense("bert/encoder/embedding_hidden_mapping_in", EMBEDDING, HIDDEN),
        **attention(f"{layer}/attention_1", "output/dense"),
        **norm(layer),
        f"{layer}/LayerNorm_1/beta": (HIDDEN,),
        f"{layer}/LayerNorm_1/gamma": (HIDDEN,),
        **dense(f"{layer}/ffn_1/intermediate/dense", HIDDEN, INNER),
        **dense(f"{layer}/ffn_1/intermediate/output/dense", INNER, HIDDEN),
        **dense("bert/pooler/dense", HIDDEN, HIDDEN),
        **pretraining_heads(EMBEDDING),
    }


def electra() -> Shapes:
    found = embeddings("electra/embeddings", EMBEDDING)
    for one in ("electra", "generator"):
        found |= dense(f"{one}/embeddings_project", EMBEDDING, HIDDEN) | bert_layers(one)
    return {
        **found,
        **dense("discriminator_predictions/dense", HIDDEN, HIDDEN),
        **dense("discriminator_predictions/dense_1", HIDDEN, 1),
        **dense("generator_predictions/dense", HIDDEN, EMBEDDING),
        **norm("generator_predictions", EMBEDDING),
        "generator_predictions/output_bias": (VOCABULARY,),
    }


def t5(gated: bool) -> Shapes:
    found: Shapes = {"shared/embedding": (VOCABULARY, HIDDEN)}
    inner, buckets = 2 * 3, 5
    parts = {"encoder": ["SelfAttention"], "decoder": ["SelfAttention", "EncDecAttention"]}
    for part, kinds in parts.items():
        for block in range(LAYERS):
            name = f"{part}/block_{block:03}"
            for index, kind in enumerate(kinds):
                for one in "qkv":
                    found[f"{name}/layer_{index:03}/{kind}/{one}"] = (HIDDEN, inner)
                found[f"{name}/layer_{index:03}/{kind}/o"] = (inner, HIDDEN)
                if block == 0:
                    bias = f"{name}/layer_{index:03}/{kind}/relative_attention_bias"
                    found[bias] = (HEADS, buckets)
            last = f"{name}/layer_{len(kinds):03}/DenseReluDense"
            for one in ("wi_0", "wi_1") if gated else ("wi",):
                found[f"{last}/{one}/kernel"] = (HIDDEN, INNER)
            found[f"{last}/wo/kernel"] = (INNER, HIDDEN)
            for index in range(len(kinds) + 1):
                found[f"{name}/layer_{index:03}/layer_norm/scale"] = (HIDDEN,)
        found[f"{part}/final_layer_norm/scale"] = (HIDDEN,)
    if gated:
        found["decoder/logits/kernel"] = (HIDDEN, VOCABULARY)
    return found


def t5_config(gated: bool) -> Any:
    return transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=HIDDEN,
        d_kv=3,
        d_ff=INNER,
        num_layers=LAYERS,
        num_heads=HEADS,
        relative_attention_num_buckets=5,
        feed_forward_proj="gated-gelu" if gated else "relu",
        tie_word_embeddings=not gated,
    )


def untied(model: Any) -> Any:
    model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
    return model


def electra_config() -> Any:
    return transformers.ElectraConfig(embedding_size=EMBEDDING, **SIZES)


MODELS: dict[str, tuple[Any, Any, Any]] = {
    "bert": (
        huggingface.BERT,
        bert,
        lambda: transformers.BertForPreTraining(transformers.BertConfig(**SIZES)),
    ),
    "albert": (
        huggingface.ALBERT,
        albert,
        lambda: transformers.AlbertForPreTraining(
            transformers.AlbertConfig(embedding_size=EMBEDDING, **SIZES)
        ),
    ),
    "electra": (
        huggingface.ELECTRA,
        electra,
        lambda: transformers.ElectraForPreTraining(electra_config()),
    ),
    "electra_generator": (
        huggingface.ELECTRA_GENERATOR,
        electra,
        lambda: transformers.ElectraForMaskedLM(electra_config()),
    ),
    "t5": (
        huggingface.T5,
        lambda: t5(False),
        lambda: transformers.T5ForConditionalGeneration(t5_config(False)),
    ),
    "t5_gated": (
        huggingface.T5,
        lambda: t5(True),
        lambda: untied(transformers.T5ForConditionalGeneration(t5_config(True))),
    ),
}


def checkpoint(folder: Path, shapes: Shapes) -> dict[str, Any]:
    """Save random values of these shapes, with the state of an optimizer beside them."""
    random = np.random.default_rng(7)
    tensors = {name: random.normal(size=size).astype("f4") for name, size in shapes.items()}
    state = {f"{name}/{slot}": tensors[name] for name in tensors for slot in ("adam_m", "adam_v")}
    steps = {"global_step": np.array(3), "beta1_power": np.float32(1)}
    if "electra/embeddings/word_embeddings" in shapes:
        steps["electra/temperature"] = np.float32(1)
    ckptfmt.save_v2(
        folder / "model.ckpt",
        [*tensors, *state, *steps],
        [""] * (3 * len(tensors) + len(steps)),
        [*tensors.values(), *state.values(), *map(np.asarray, steps.values())],
    )
    return tensors


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_has_its_place(tmp_path: Path, name: str) -> None:
    """Both ways: no parameter is left, and no tensor of the checkpoint, and where a square kernel
    could hide a missing transpose, the values show it."""
    rules, shapes, make = MODELS[name]
    tensors = checkpoint(tmp_path, shapes())
    model = make()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    report = ckptfmt.torch.load_into(model, tmp_path / "model.ckpt", rename=rules)
    assert report.complete
    after = model.state_dict()
    assert not [key for key, value in after.items() if torch.equal(value, before[key])]
    for one, array in tensors.items():
        found = [new for new in report.matched if np.array_equal(after[new].numpy(), array)]
        turned = [new for new in report.matched if np.array_equal(after[new].numpy(), array.T)]
        is_matrix = array.ndim == 2
        plain = one.endswith(("_embeddings", "embedding", "output_weights"))
        assert len(found) + len(turned) <= 1 + (array.ndim == 1)
        if found or turned:
            assert bool(turned) == (not plain) or not is_matrix, one


# ---- BERT, computed from the checkpoint alone ----------------------------------------------------


def layer_norm(x: Any, tensors: Any, name: str) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    return scaled * tensors[f"{name}/LayerNorm/gamma"] + tensors[f"{name}/LayerNorm/beta"]


def linear(x: Any, tensors: Any, name: str) -> Any:
    return x @ tensors[f"{name}/kernel"] + tensors[f"{name}/bias"]


def gelu(x: Any) -> Any:
    return x * torch.special.ndtr(torch.from_numpy(x)).numpy()


def bert_outputs(tensors: Any, tokens: Any, types: Any) -> tuple[Any, Any]:
    """The outputs of the original model, in its own layout."""
    base = "bert/embeddings"
    x = tensors[f"{base}/word_embeddings"][tokens] + tensors[f"{base}/token_type_embeddings"][types]
    x = layer_norm(x + tensors[f"{base}/position_embeddings"][: tokens.shape[1]], tensors, base)
    split = (*tokens.shape, HEADS, HIDDEN // HEADS)
    for index in range(LAYERS):
        layer = f"bert/encoder/layer_{index}"
        query, key, value = (
            linear(x, tensors, f"{layer}/attention/self/{one}").reshape(split)
            for one in ("query", "key", "value")
        )
        scores = np.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(HIDDEN // HEADS)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("bhqk,bkhd->bqhd", weights, value).reshape(x.shape)
        name = f"{layer}/attention/output"
        x = layer_norm(x + linear(mixed, tensors, f"{name}/dense"), tensors, name)
        inner = gelu(linear(x, tensors, f"{layer}/intermediate/dense"))
        x = layer_norm(
            x + linear(inner, tensors, f"{layer}/output/dense"), tensors, f"{layer}/output"
        )
    pooled = np.tanh(linear(x[:, 0], tensors, "bert/pooler/dense"))
    name = "cls/predictions/transform"
    words = layer_norm(gelu(linear(x, tensors, f"{name}/dense")), tensors, name)
    logits = words @ tensors[f"{base}/word_embeddings"].T + tensors["cls/predictions/output_bias"]
    name = "cls/seq_relationship/output_"
    return logits, pooled @ tensors[f"{name}weights"].T + tensors[f"{name}bias"]


@pytest.mark.parametrize("partitioned", [False, True])
def test_bert_computes_the_same(tmp_path: Path, partitioned: bool) -> None:
    tensors = checkpoint(tmp_path, bert())
    if partitioned:
        with ckptfmt.Writer(tmp_path / "model.ckpt") as writer:
            for name, array in tensors.items():
                for row, part in itertools.product(range(2), [array] * (array.ndim == 2)):
                    half = len(array) // 2
                    rows = part[:half] if row == 0 else part[half:]
                    writer.add_slice(name, rows, shape=array.shape, offset=(row * half, 0))
                if array.ndim == 1:
                    writer.add(name, array)
    model = MODELS["bert"][2]().eval()
    ckptfmt.torch.load_into(model, tmp_path / "model.ckpt", rename=huggingface.BERT)
    tokens, types = np.array([[1, 4, 2, 9, 3], [5, 0, 10, 2, 2]]), np.array([[0, 0, 1, 1, 1]] * 2)
    with torch.no_grad():
        found = model(torch.from_numpy(tokens), token_type_ids=torch.from_numpy(types))
    logits, relationship = bert_outputs(tensors, tokens, types)
    np.testing.assert_allclose(found.prediction_logits.numpy(), logits, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.seq_relationship_logits.numpy(), relationship, rtol=1e-4)


# ---- other models, devices and errors ------------------------------------------------------------


def test_models_without_a_head_and_with_another(tmp_path: Path) -> None:
    tensors = checkpoint(tmp_path, bert())
    path, config = tmp_path / "model.ckpt", transformers.BertConfig(**SIZES)
    rules = [*huggingface.BERT, (r"^bert\.", ""), (r"^cls\.", None)]
    model = transformers.BertModel(config)
    assert ckptfmt.torch.load_into(model, path, rename=rules)
    kernel = tensors["bert/pooler/dense/kernel"]
    assert np.array_equal(model.pooler.dense.weight.detach().numpy(), kernel.T)
    for extra, other in (
        ("output_", transformers.BertForSequenceClassification(config)),
        ("cls/squad/output_", transformers.BertForQuestionAnswering(config)),
    ):
        shapes = {name: size for name, size in bert().items() if not name.startswith("cls")}
        checkpoint(tmp_path, {**shapes, f"{extra}weights": (2, HIDDEN), f"{extra}bias": (2,)})
        has_pooler = "squad" not in extra  # run_squad saves one that it does not use
        report = ckptfmt.torch.load_into(other, path, rename=huggingface.BERT, strict=has_pooler)
        assert not report.missing and bool(report) == has_pooler


def test_other_dtypes_and_what_does_not_fit(tmp_path: Path) -> None:
    tensors = checkpoint(tmp_path, bert())
    path, make = tmp_path / "model.ckpt", MODELS["bert"][2]
    model = make().bfloat16()
    with pytest.raises(ckptfmt.InvalidError, match="cast=True converts"):
        ckptfmt.torch.load_into(model, path, rename=huggingface.BERT)
    ckptfmt.torch.load_into(model, path, rename=huggingface.BERT, cast=True)
    found = model.bert.pooler.dense.weight.detach()
    assert torch.equal(found, torch.from_numpy(tensors["bert/pooler/dense/kernel"].T).bfloat16())
    with pytest.raises(ckptfmt.CkptfmtError) as caught:
        ckptfmt.torch.load_into(make(), path)
    assert "bert/pooler/dense/kernel" in caught.value.report.unexpected
    with torch.device("meta"):
        empty = make()
    assert ckptfmt.torch.load_into(empty, path, rename=huggingface.BERT)
    ckptfmt.torch.load_into(model := make(), path, rename=huggingface.BERT)
    assert all(map(torch.equal, empty.state_dict().values(), model.state_dict().values()))
    both = {"a": torch.zeros(2)}
    both["b"] = both["a"]
    ckptfmt.save(tmp_path / "b", {"x/b": np.ones(2, "f4")})
    assert ckptfmt.torch.load_into(both, tmp_path / "b", rename=[("x/", "")])
    assert both["a"].tolist() == [1, 1]
    ckptfmt.save(tmp_path / "b", {"x/b": np.ones(2, "f4"), "x/a": np.zeros(2, "f4")})
    with pytest.raises(ckptfmt.InvalidError, match="shares memory"):
        ckptfmt.torch.load_into(both, tmp_path / "b", rename=[("x/", "")])
    with pytest.raises(ckptfmt.InvalidError, match="missing"):
        ckptfmt.torch.load_into({"a": 1}, path, rename=huggingface.BERT)


def test_the_page(tmp_path: Path) -> None:
    """With the files of a release, which are small here."""
    checkpoint(tmp_path, bert())
    for file in tmp_path.glob("model.ckpt.*"):
        file.rename(tmp_path / f"bert_{file.name}")
    transformers.BertConfig(**SIZES).to_json_file(tmp_path / "bert_config.json")
    run_page("docs/huggingface.md", tmp_path)
    run_console("docs/huggingface.md", tmp_path)
