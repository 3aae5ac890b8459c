"""BERT (Devlin et al., 2018): the classes of Hugging Face transformers for pretraining, masked
tokens, classification, regression and spans, and the encoder alone.

The architecture is post-norm, with exact gelu. Tokens are predicted by a dense layer, a norm
and a matmul with the embedding table. Older files call a norm's scale and bias "gamma" and
"beta". The tables are conversion rules: see `transformer.convert.rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from transformer.convert.config_settings import Settings, hugging_face_activation
from transformer.convert.families.block_rules import block_rules
from transformer.convert.families.family import NORM_RENAMES, Family
from transformer.convert.rules import Rule, table
from transformer.models.architecture import Architecture
from transformer.models.base import Model
from transformer.models.bert import Bert, Classifier, SpanExtractor, bert_architecture
from transformer.models.encoders.bert_variants import MaskedBert, Regressor, TextEncoder

# Tables of conversion rules: Hugging Face's tensor, our variable, the axes of the tensor;
# dimensions in brackets are merged into one axis.
_EMBEDDINGS = """
  embeddings.word_embeddings.weight         embedding/table            vocab d_model
  embeddings.position_embeddings.weight     position_embedding/table   positions d_model
  embeddings.token_type_embeddings.weight   type_embedding/table       token_types d_model
  embeddings.LayerNorm.weight               embedding_norm/scale       d_model
  embeddings.LayerNorm.bias                 embedding_norm/bias        d_model
"""
_POOLER = """
  pooler.dense.weight   pooler/kernel   d_pooled d_model
  pooler.dense.bias     pooler/bias     d_pooled
"""
_BLOCK = """
  attention.self.query.weight         attention/query/kernel    (heads d_kv) d_model
  attention.self.query.bias           attention/query/bias      (heads d_kv)
  attention.self.key.weight           attention/key/kernel      (heads d_kv) d_model
  attention.self.key.bias             attention/key/bias        (heads d_kv)
  attention.self.value.weight         attention/value/kernel    (heads d_kv) d_model
  attention.self.value.bias           attention/value/bias      (heads d_kv)
  attention.output.dense.weight       attention/output/kernel   d_model (heads d_kv)
  attention.output.dense.bias         attention/output/bias     d_model
  attention.output.LayerNorm.weight   attention_norm/scale      d_model
  attention.output.LayerNorm.bias     attention_norm/bias       d_model
  intermediate.dense.weight           feed_forward/wi/kernel    d_ff d_model
  intermediate.dense.bias             feed_forward/wi/bias      d_ff
  output.dense.weight                 feed_forward/wo/kernel    d_model d_ff
  output.dense.bias                   feed_forward/wo/bias      d_model
  output.LayerNorm.weight             feed_forward_norm/scale   d_model
  output.LayerNorm.bias               feed_forward_norm/bias    d_model
"""
_MASKED_TOKENS = """
  predictions.bias                         logits_bias            vocab
  predictions.transform.dense.weight       transform/kernel       d_transform d_model
  predictions.transform.dense.bias         transform/bias         d_transform
  predictions.transform.LayerNorm.weight   transform_norm/scale   d_transform
  predictions.transform.LayerNorm.bias     transform_norm/bias    d_transform
"""
_NEXT_SENTENCE = """
  seq_relationship.weight   next_sentence/kernel   classes d_pooled
  seq_relationship.bias     next_sentence/bias     classes
"""
_CLASSES = """
  classifier.weight   classifier/classes/kernel   classes d_pooled
  classifier.bias     classifier/classes/bias     classes
"""
_ENDS = """
  qa_outputs.weight   span_extractor/ends/kernel   ends d_model
  qa_outputs.bias     span_extractor/ends/bias     ends
"""


def _read_config(settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Returns the arguments of `Bert` or `SpanExtractor` for a config.json, by name. The names
    of tensors are not used.
    """
    dropout = settings.get("hidden_dropout_prob", 0.1)
    settings.require(
        position_embedding_type="absolute",
        is_decoder=False,
        is_encoder_decoder=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
        pad_token_id=0,  # the id that our encoder leaves out
        attention_probs_dropout_prob=dropout,  # our models have one dropout rate
    )
    d_model = settings["hidden_size"]
    heads = settings["num_attention_heads"]
    return {
        "architecture": bert_architecture(
            vocab=settings["vocab_size"],
            d_model=d_model,
            d_ff=settings["intermediate_size"],
            heads=heads,
            d_kv=d_model // heads,
            blocks=settings["num_hidden_layers"],
            activation=settings.activation("hidden_act"),
            dropout=dropout,
            epsilon=settings.get("layer_norm_eps", 1e-12),
            max_length=settings["max_position_embeddings"],
            token_types=settings.get("type_vocab_size", 2),
        )
    }


def _read_classifier_config(
    settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    """Returns the arguments of `Classifier` for a config.json, by name."""
    settings.require(
        problem_type="single_label_classification",
        classifier_dropout=settings.get("hidden_dropout_prob", 0.1),
    )
    # Without `id2label`, a config.json of Hugging Face means two classes. Only their count
    # is used, not their names.
    labels = settings.get("id2label", {0: "LABEL_0", 1: "LABEL_1"})
    return {**_read_config(settings, names), "labels": len(labels)}


def _read_regressor_config(
    settings: Settings, names: Collection[str]
) -> dict[str, Any]:
    """Returns the arguments of `Regressor` for a config.json, by name."""
    settings.require(
        problem_type="regression",
        classifier_dropout=settings.get("hidden_dropout_prob", 0.1),
    )
    return _read_config(settings, names)


def _read_encoder_config(settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Returns the arguments of `TextEncoder` for a config.json, by name."""
    has_pooler = any(name.endswith("pooler.dense.weight") for name in names)
    return {**_read_config(settings, names), "has_pooler": has_pooler}


def _write_config(model: Model) -> dict[str, Any]:
    """Returns the settings of config.json for a model with a BERT encoder."""
    architecture: Architecture = model.architecture
    return {
        "model_type": "bert",
        "vocab_size": architecture.vocab,
        "hidden_size": architecture.d_model,
        "num_hidden_layers": architecture.blocks,
        "num_attention_heads": architecture.heads,
        "intermediate_size": architecture.d_ff,
        "hidden_act": hugging_face_activation(architecture.activation),
        "hidden_dropout_prob": architecture.dropout,
        "attention_probs_dropout_prob": architecture.dropout,
        "max_position_embeddings": architecture.max_length,
        "type_vocab_size": architecture.token_types,
        "layer_norm_eps": architecture.epsilon,
        "pad_token_id": 0,
    }


def _write_classifier_config(model: Classifier) -> dict[str, Any]:
    """Returns the settings of config.json for a classifier."""
    labels = model.classes.new_dims.size
    return {
        **_write_config(model),
        "id2label": {str(i): f"LABEL_{i}" for i in range(labels)},
        "label2id": {f"LABEL_{i}": i for i in range(labels)},
        "problem_type": "single_label_classification",
    }


def _write_regressor_config(model: Regressor) -> dict[str, Any]:
    """Returns the settings of config.json for a model that predicts a number."""
    return {
        **_write_config(model),
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "problem_type": "regression",
    }


def _make_rules(
    head_rules: list[Rule], prefix: str = "bert."
) -> Callable[[Any], list[Rule]]:
    """Returns the field `rules` of a family: a function of a model that returns its conversion
    rules.

    Args:
      head_rules: the rules of the layers after the encoder.
      prefix: the start of the names of the encoder's tensors.
    """

    def rules(model: Any) -> list[Rule]:
        """Returns the rules of a model."""
        encoder_table = _EMBEDDINGS
        if model.encoder.pooler is not None:
            encoder_table += _POOLER
        return [
            *table(encoder_table, tensor_prefix=prefix, variable_prefix="bert/"),
            *head_rules,
            *block_rules(
                model.encoder.stack,
                _BLOCK,
                tensor_prefix=prefix + "encoder.layer.{layer}.",
            ),
        ]

    return rules


def _lacks_next_sentence(config: Mapping[str, Any], names: Collection[str]) -> bool:
    """Returns whether files have no layer that tells whether a text follows another."""
    return "cls.seq_relationship.weight" not in names


def _is_regression(config: Mapping[str, Any], names: Collection[str]) -> bool:
    """Returns whether a config.json is of a model that predicts a number: transformers takes
    one label for that, if `problem_type` does not say it.
    """
    problem = config.get("problem_type")
    has_one_label = len(config.get("id2label") or "two") == 1
    return problem == "regression" or (problem is None and has_one_label)


_IGNORED_NAMES = r"\bembeddings\.position_ids$"
# Older files have a pooler that the model does not use.
_IGNORED_WITH_POOLER = rf"{_IGNORED_NAMES}|^bert\.pooler\."
_PRETRAINING_PREFIXES = {"tensor_prefix": "cls.", "variable_prefix": "pretraining/"}
_MASKED_TOKEN_COPIES = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
BERT_MASKED = Family(
    class_names=["BertForMaskedLM"],
    model_class=MaskedBert,
    accepts=_lacks_next_sentence,
    read_config=_read_config,
    write_config=_write_config,
    rules=_make_rules(table(_MASKED_TOKENS, **_PRETRAINING_PREFIXES)),
    renames=NORM_RENAMES,
    ignored_names=_IGNORED_WITH_POOLER,
    copies=lambda model: _MASKED_TOKEN_COPIES,
)
BERT = Family(
    class_names=["BertForPreTraining", "BertForMaskedLM"],
    model_class=Bert,
    read_config=_read_config,
    write_config=_write_config,
    rules=_make_rules(table(_MASKED_TOKENS + _NEXT_SENTENCE, **_PRETRAINING_PREFIXES)),
    renames=NORM_RENAMES,
    ignored_names=_IGNORED_NAMES,
    copies=lambda model: _MASKED_TOKEN_COPIES,
)
BERT_REGRESSOR = Family(
    class_names=["BertForSequenceClassification"],
    model_class=Regressor,
    accepts=_is_regression,
    read_config=_read_regressor_config,
    write_config=_write_regressor_config,
    rules=_make_rules(table(_CLASSES)),
    renames=NORM_RENAMES,
    ignored_names=_IGNORED_NAMES,
)
BERT_CLASSIFIER = Family(
    class_names=["BertForSequenceClassification"],
    model_class=Classifier,
    read_config=_read_classifier_config,
    write_config=_write_classifier_config,
    rules=_make_rules(table(_CLASSES)),
    renames=NORM_RENAMES,
    ignored_names=_IGNORED_NAMES,
)
BERT_SPANS = Family(
    class_names=["BertForQuestionAnswering"],
    model_class=SpanExtractor,
    read_config=_read_config,
    write_config=_write_config,
    rules=_make_rules(table(_ENDS)),
    renames=NORM_RENAMES,
    ignored_names=_IGNORED_WITH_POOLER,
)
BERT_ENCODER = Family(
    class_names=["BertModel"],
    model_class=TextEncoder,
    read_config=_read_encoder_config,
    write_config=_write_config,
    rules=_make_rules([], prefix=""),
    renames=[*NORM_RENAMES, (r"^bert\.", "")],
    ignored_names=_IGNORED_NAMES,
)
