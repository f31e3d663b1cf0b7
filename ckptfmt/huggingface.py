# SPDX-License-Identifier: Apache-2.0
"""The names and layouts of Hugging Face's PyTorch models for the tensors of TensorFlow checkpoints
as their authors released them.

Each table is a list of rules for `rename`, which are applied to every name one after the other; the
last element of a rule transforms the tensor. A kernel of TensorFlow is the transposed weight.
The state of optimizers is dropped.

    ckptfmt.torch.load_into(BertForPreTraining(config), "bert_model.ckpt", rename=BERT)

The names are those of the models with heads ("bert.encoder..."). A model without a head has no
first part:

    rename = [*BERT, ("^bert[.]", ""), ("^cls[.]", None)]
    ckptfmt.torch.load_into(BertModel(config), "bert_model.ckpt", rename=rename)
"""

from __future__ import annotations

import numpy as np

from ckptfmt._base.renaming import Rule

__all__ = ["ALBERT", "BERT", "ELECTRA", "ELECTRA_GENERATOR", "T5"]


def __dir__() -> list[str]:
    return __all__


# What optimizers add.
_STATE: list[Rule] = [
    (r"(^|/)(global_step|(adam|lamb)_[mv]|Adam(WeightDecayOptimizer)?(_1)?)$", None),
    (r"(^|/)beta[12]_power(_1)?$", None),
]
# Names within layers, and slashes.
_NAMES: list[Rule] = [
    (r"/layer_(\d+)/", r"/layer/\1/"),
    (r"/(gamma|output_weights)$", "/weight"),
    (r"/(beta|output_bias)$", "/bias"),
    (r"_embeddings$", "_embeddings/weight"),
    (r"/kernel$", "/weight", np.transpose),
    ("/", "."),
]
# Heads of models that were trained further by the authors' scripts.
_HEADS: list[Rule] = [
    ("^cls/squad/", "qa_outputs/"),
    ("^output_", "classifier/output_"),
]

# google-research/bert: BertForPreTraining, BertForQuestionAnswering, BertForSequenceClassification.
BERT: list[Rule] = [*_STATE, *_HEADS, *_NAMES]

# google-research/albert: AlbertForPreTraining, AlbertForSequenceClassification.
ALBERT: list[Rule] = [
    *_STATE,
    *_HEADS,
    ("^(module/)?bert/", "albert/"),
    (
        r"/transformer/group_(\d+)/inner_group_(\d+)/",
        r"/albert_layer_groups/\1/albert_layers/\2/",
    ),
    ("/LayerNorm_1/", "/full_layer_layer_norm/"),
    (r"(/albert_layers/\d+)/LayerNorm/", r"\1/attention/LayerNorm/"),
    ("/attention_1/self/", "/attention/"),
    ("/attention_1/output/", "/attention/"),
    ("/ffn_1/intermediate/dense/", "/ffn/"),
    ("/ffn_1/intermediate/output/dense/", "/ffn_output/"),
    ("/pooler/dense/", "/pooler/"),
    ("^cls/predictions/(transform/)?", "predictions/"),
    ("^cls/seq_relationship/", "sop_classifier/classifier/"),
    *_NAMES,
]

# google-research/electra: ElectraForPreTraining, the discriminator.
ELECTRA: list[Rule] = [
    *_STATE,
    ("^(generator|generator_predictions)/|(^|/)temperature$", None),
    ("^discriminator_predictions/dense_1/", "discriminator_predictions/dense_prediction/"),
    *_NAMES,
]

# The same checkpoints: ElectraForMaskedLM, the generator, which shares the embeddings.
ELECTRA_GENERATOR: list[Rule] = [
    *_STATE,
    ("^electra/(?!embeddings/)|^discriminator_predictions/|(^|/)temperature$", None),
    ("^generator/", "electra/"),
    ("^generator_predictions/output_bias$", "generator_lm_head/output_bias"),
    *_NAMES,
]

# google-research/text-to-text-transfer-transformer, T5 1.1 and mT5: T5ForConditionalGeneration.
# Only a model whose lm_head is not tied to the embeddings has a place for decoder/logits.
T5: list[Rule] = [
    *_STATE,
    ("_slot_", None),
    # Present in the first releases, and never used.
    ("/EncDecAttention/relative_attention_bias$", None),
    (r"(/block_\d+/layer_\d+)/rms_norm/", r"\1/layer_norm/"),
    ("/rms_norm/", "/final_layer_norm/"),
    (r"/block_0*(\d+)/layer_0*(\d+)/", r"/block/\1/layer/\2/"),
    ("^decoder/logits/", "lm_head/"),
    ("/(embedding|scale)$", "/weight"),
    ("/kernel$", "/weight", np.transpose),
    ("Attention/([qkvo]|relative_attention_bias)$", r"Attention/\1/weight", np.transpose),
    ("/", "."),
]
